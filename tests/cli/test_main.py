"""The whole tree of commands: its help, its start-up, its suggestions, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from tests.cli.test_rpc_tokens import TOKEN
from tests.samples import sample

from tollgate import __version__
from tollgate.api.teams import Team
from tollgate.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Api, Tool

HERE = Path(__file__).parent
# Written elsewhere in the tree, with their examples above the options.
OPERATION = {"serve", "demo", "migrate", "config", "admin"}
HEAVY = (
    "urllib3 rich msgspec keyring litestar sqlalchemy asyncio httpx ssl structlog uvicorn socket http email json "
    "subprocess logging webbrowser tempfile alembic tldextract idna concurrent urllib"
)


def commands(command: click.Command, ctx: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    yield command, ctx
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None, name
            yield from commands(below, click.Context(below, parent=ctx, info_name=name))


def tree() -> list[tuple[str, click.Command, click.Context]]:
    root = click.Context(cli, info_name="tollgate", terminal_width=80, **cli.context_settings)
    return [(ctx.command_path, command, ctx) for command, ctx in commands(cli, root)]


def test_the_given_commands_are_there() -> None:
    given = """auth login|status|logout|token
    teams create|list|show|rename|join
    teams members list|invite|remove|set-role
    teams invitations list|revoke
    rpc tokens create|list|show|update|rotate|disable|enable|delete
    rpc whitelist add|list|show|remove|verify|check|update
    rpc logs
    account show|password
    account tokens create|list|delete"""
    paths = {path for path, _, _ in tree()}
    for line in given.splitlines():
        *group, names = line.split()
        assert {" ".join(["tollgate", *group, name]) for name in names.split("|")} <= paths
    assert {f"tollgate {name}" for name in ("audit", "completion", "serve", "demo", "migrate", "admin")} <= paths


def test_every_help_fits_one_screen_and_gives_an_example() -> None:
    for path, command, ctx in tree():
        page = command.get_help(ctx)
        lines = page.splitlines()
        # The shell's next prompt needs a line, too. The main page lists every command with its line.
        assert len(lines) <= 23 or path == "tollgate", f"{path} --help has {len(lines)} lines"
        assert max(map(len, lines)) <= 80, path
        assert "Example: " in page, path
        if path.split()[1:2] and path.split()[1] not in OPERATION:
            assert lines[-1].strip().startswith("Example: "), f"the example of {path} is no single last line"


def test_main_help_lists_every_command_with_its_line() -> None:
    (page,) = (command.get_help(ctx) for path, command, ctx in tree() if path == "tollgate")
    for path, _, _ in tree():
        words = path.split()
        if len(words) == 2:
            assert re.search(rf"^  {words[1]} +\S", page, re.MULTILINE), path


def test_every_option_and_command_has_a_description() -> None:
    for path, command, ctx in tree():
        assert command.help, path
        for param in command.get_params(ctx):
            if isinstance(param, click.Option):
                assert param.help, f"{path} {param.opts}"


def test_every_example_is_a_command_that_exists_with_options_that_exist() -> None:
    known = {path: command for path, command, _ in tree()}
    for path, command, _ in tree():
        example = (command.epilog or "").removeprefix("Example: ")
        if path == "tollgate" or path.split()[1] in OPERATION or not example.startswith("tollgate "):
            continue
        words = shlex.split(example)
        length = max(n for n in range(1, len(words) + 1) if " ".join(words[:n]) in known)
        called = known[" ".join(words[:length])]
        assert path in " ".join(words), f"the example of {path} shows something else"
        called.make_context("x", words[length:])  # raises when Click would refuse it


def loaded_by(*arguments: str) -> set[str]:
    code = "import sys\nfrom tollgate.cli.main import run\nrun(sys.argv[1:])\nprint('\\n', *sys.modules)"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")}
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True, env=environ
    )
    return set(ran.stdout.rsplit("\n ", 1)[1].split())


@pytest.mark.e2e
@pytest.mark.parametrize(
    "arguments",
    [
        "--help",
        "--version",
        "rpc --help",
        "rpc tokens --help",
        "rpc tokens list --help",
        "rpc whitelist list --help",
        "rpc logs --help",
        "auth login --help",
        "teams members invite --help",
        "account tokens create --help",
        "usage --help",
        "usage cap --help",
        "invoices show --help",
        "audit --help",
        "completion --help",
    ],
)
def test_help_loads_click_and_little_else(arguments: str) -> None:
    bare = subprocess.run(
        [sys.executable, "-c", "import sys, click; print(len(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = loaded_by(*arguments.split())
    assert not set(HEAVY.split()) & {name.partition(".")[0] for name in loaded}
    # 20 to 24 more than Click alone: our own, and small ones of the standard library.
    assert len(loaded) - int(bare.stdout) <= 28


@pytest.mark.e2e
def test_commands_of_the_operator_are_not_loaded_for_those_of_teams() -> None:
    assert not {"tollgate.cli.serve", "tollgate.cli.demo", "tollgate.settings.model"} & loaded_by(
        "rpc", "tokens", "--help"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("rpc tokens lst", "No such command 'lst'. Did you mean 'list'?"),
        ("rpc whitelst list", "No such command 'whitelst'. Did you mean 'whitelist'?"),
        ("teams member list", "No such command 'member'. Did you mean 'members'?"),
        ("ath login", "No such command 'ath'. Did you mean 'auth'?"),
        ("tokens list", "No such command 'tokens'. Did you mean 'rpc tokens'?"),
        ("whitelist", "No such command 'whitelist'. Did you mean 'rpc whitelist'?"),
        ("xyzzy", "No such command 'xyzzy'.\n"),
        ("rpc tokens list --tem acme", "--team"),
        ("rpc tokens list --frob", "No such option '--frob'"),
        ("rpc tokens create", "Missing argument 'NAME'"),
        ("rpc tokens delete", "Missing argument 'TOKEN'"),
        ("login", "No such command 'login'. Did you mean 'tollgate auth login'?"),
        ("teams members invite a@example.com --role king", "'king' is not one of"),
        ("teams members invite a@example.com", "Missing option '--role'"),
        ("completion tcsh", "'tcsh' is not one of"),
    ],
)
def test_wrong_usage_is_exit_2_with_the_nearest_right_one(tool: Tool, arguments: str, words: str) -> None:
    ran = tool.run(*arguments.split())
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


@pytest.mark.parametrize("arguments", ["", "rpc", "rpc tokens", "teams members"])
def test_a_group_alone_shows_its_help_and_is_wrong_usage(tool: Tool, arguments: str) -> None:
    ran = tool.run(*arguments.split())
    assert (ran.code, ran.out) == (2, "")
    assert "Commands:" in ran.err


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_goes_to_stdout(tool: Tool, option: str) -> None:
    ran = tool.run("rpc", "tokens", option)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("Usage: tollgate rpc tokens ")


@pytest.mark.e2e
def test_version_names_the_commit_of_a_checkout(tool: Tool) -> None:
    ran = tool.run("--version")
    found = re.fullmatch(rf"tollgate {re.escape(__version__)} \(([0-9a-f]{{12}})\)\n", ran.out)
    assert (ran.code, found is not None) == (0, True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=True)
    assert found is not None
    assert head.stdout.startswith(found[1])


@pytest.mark.e2e
def test_the_package_can_be_run_as_a_module() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tollgate", "--version"], capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith(f"tollgate {__version__}")


@pytest.mark.e2e
def test_a_closed_pipe_causes_no_error(api: Api, acme: Tool) -> None:
    item = {"id": "team_1", "name": "acme", "role": "owner", "created_at": "2026-11-15T06:44:44Z"}
    api.on("GET", "teams?limit=100", {"items": [item] * 1000, "next": None})
    read, write = os.pipe()
    os.close(read)
    try:
        ran = acme.process("teams", "list", stdout=write)
    finally:
        os.close(write)
    assert (ran.code, ran.err) == (1, "")


@pytest.mark.e2e
def test_a_reader_that_stops_early_gets_what_it_wanted(api: Api, acme: Tool) -> None:
    item = {"id": "team_1", "name": "acme", "role": "owner", "created_at": "2026-11-15T06:44:44Z"}
    api.on("GET", "teams?limit=100", {"items": [item] * 1000, "next": None})
    with acme.started("teams", "list") as popen:
        assert popen.stdout is not None
        assert popen.stderr is not None
        first = popen.stdout.readline()
        popen.stdout.close()
        assert first.split() == [b"ID", b"NAME", b"ROLE", b"CREATED"]
        assert popen.stderr.read() == b""


@pytest.mark.e2e
def test_an_encoding_that_lacks_a_letter_causes_no_failure(api: Api, acme: Tool) -> None:
    api.on("GET", "teams/acme", sample(Team, name="令牌"))
    ran = acme.process("teams", "show", env={"PYTHONIOENCODING": "latin-1"})
    assert (ran.code, "\\u4ee4\\u724c" in ran.out) == (0, True)


@pytest.mark.e2e
def test_data_goes_to_stdout_and_messages_to_stderr(api: Api, acme: Tool) -> None:
    made = {**TOKEN, "secret": "tg_x"}
    api.on("POST", "teams/acme/tokens", made, status=201)
    ran = acme.process("rpc", "tokens", "create", "ci", "--json")
    assert (ran.code, json.loads(ran.out)) == (0, made)
    assert ran.err == "Save the secret now: it is shown only once.\n"
