"""Completion: the scripts, what they request from the tool, and a real bash."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from tests.cli.test_rpc_tokens import TOKEN
from tests.samples import sample

from parts.need import need
from tollgate.api.teams import Team

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Api, Tool

TEAMS = {"items": [sample(Team, name=name) for name in ("acme", "acorn", "b$(x)")]}


def completed(tool: Tool, words: str, **env: str) -> list[str]:
    """What bash would be offered for the last of these words."""
    index = str(len(words.split(" ")) - 1)
    ran = tool.process(
        env={"_TOLLGATE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": index, **env}
    )
    assert (ran.code, ran.err) == (0, "")
    return [line.partition(",")[2] for line in ran.out.split()]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("tollgate a", ["auth", "audit", "account", "api", "admin"]),
        ("tollgate rpc ", ["tokens", "whitelist", "networks", "call", "logs"]),
        ("tollgate rpc tokens d", ["disable", "delete"]),
        ("tollgate teams m", ["members"]),
        ("tollgate teams members ", ["list", "invite", "remove", "set-role"]),
        ("tollgate teams members set-role x ", ["owner", "admin", "developer", "billing", "viewer"]),
        ("tollgate account tokens create ci --ex", ["--expires"]),
        ("tollgate completion ", ["bash", "zsh", "fish", "install"]),
        ("tollgate nonsense x", []),
    ],
)
def test_commands_options_and_choices_complete_at_every_depth(tool: Tool, words: str, offered: list[str]) -> None:
    assert completed(tool, words) == offered


@pytest.mark.e2e
def test_a_team_completes_to_ones_own(api: Api, acme: Tool) -> None:
    api.on("GET", "teams", TEAMS)
    assert completed(acme, "tollgate rpc tokens list --team ac") == ["acme", "acorn"]


@pytest.mark.e2e
def test_a_team_that_could_be_code_is_not_offered(api: Api, acme: Tool) -> None:
    api.on("GET", "teams", TEAMS)
    assert completed(acme, "tollgate rpc tokens list --team b") == []


@pytest.mark.e2e
def test_without_a_login_nothing_is_requested(tool: Tool) -> None:
    assert completed(tool, "tollgate rpc tokens list --team ") == []


@pytest.mark.e2e
def test_an_expired_login_is_not_renewed_for_a_completion(api: Api, tool: Tool) -> None:
    tool.log_in(expires_at=1.0)
    api.problem("GET", "teams", 401, "login_expired", "It has run out.")
    assert completed(tool, "tollgate audit --team ") == []


@pytest.mark.e2e
def test_an_unavailable_server_prints_nothing_in_a_completion(acme: Tool) -> None:
    assert completed(acme, "tollgate audit --team ", TOLLGATE_URL="http://127.0.0.1:1", TOLLGATE_TOKEN="x") == []


@pytest.mark.e2e
def test_a_server_that_does_not_answer_is_left_after_a_second(api: Api, acme: Tool) -> None:
    done = threading.Event()
    api.on("GET", "teams", TEAMS, before=lambda: done.wait(20))
    try:
        assert completed(acme, "tollgate audit --team ") == []
    finally:
        done.set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_alone_on_stdout_and_quiet_when_it_is_sourced(tool: Tool, shell: str) -> None:
    ran = tool.run("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    assert f"_TOLLGATE_COMPLETE={shell}_complete" in ran.out
    assert "_tollgate_completion" in ran.out


@pytest.mark.e2e
@pytest.mark.parametrize(("shell", "place"), [("bash", "bash-completion"), ("zsh", "$fpath"), ("fish", "fish/")])
def test_on_a_terminal_it_shows_where_to_put_the_script(tool: Tool, shell: str, place: str) -> None:
    with tool.terminal("completion", shell, stderr=subprocess.PIPE) as terminal:
        assert terminal.end() == 0
        assert terminal.popen.stderr is not None
        assert place in terminal.popen.stderr.read().decode()


def on_path(folder: Path) -> str:
    folder.mkdir()
    shim = folder / "tollgate"
    code = "from tollgate.cli.main import main; main()"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    shim.chmod(0o755)
    return str(folder)


@pytest.mark.e2e
def test_a_real_bash_completes_after_sourcing_the_script(api: Api, acme: Tool, tmp_path: Path) -> None:
    bash = str(need("bash"))
    api.on("GET", "teams", TEAMS)
    script = """
    set -eu
    PATH="$1:$PATH"
    source <(tollgate completion bash)
    completed() {
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
        _tollgate_completion tollgate
        echo "${COMPREPLY[*]}"
    }
    completed tollgate rpc tokens ro
    completed tollgate rpc whitelist --
    completed tollgate rpc tokens list --team ac
    complete -p tollgate
    """
    ran = subprocess.run(
        [bash, "--norc", "-c", script, "bash", on_path(tmp_path / "bin")],
        capture_output=True,
        text=True,
        env=acme.environ(),
        timeout=60,
        check=False,
    )
    assert ran.stderr == ""
    assert ran.stdout.splitlines()[:3] == ["rotate", "--help", "acme acorn"]
    assert "-F _tollgate_completion tollgate" in ran.stdout


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("shell", "check"),
    [
        ("zsh", "autoload -U compinit && compinit -D && source /dev/stdin && echo $_comps[tollgate]"),
        ("fish", "source"),
    ],
)
def test_another_real_shell_takes_the_script(tool: Tool, shell: str, check: str) -> None:
    program = str(need(shell))
    script = tool.run("completion", shell).out
    ran = subprocess.run(
        [program, "-c", check], input=script, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.e2e
def test_completing_a_name_loads_no_command_and_no_library() -> None:
    code = """
import os, sys
os.environ |= {"_TOLLGATE_COMPLETE": "bash_complete", "COMP_WORDS": "tollgate rpc ", "COMP_CWORD": "2"}
from tollgate.cli.main import main
try:
    main([])
except SystemExit:
    pass
heavy = {"urllib3", "msgspec", "rich", "keyring", "ssl", "asyncio"}
heavy |= {"tollgate.cli.rpc_tokens", "tollgate.settings.model"}
sys.exit(" ".join(heavy & set(sys.modules)) or 0)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.e2e
def test_tokens_networks_and_months_complete(api: Api, acme: Tool) -> None:
    api.on("GET", "teams/acme/tokens?limit=1000", {"items": [TOKEN], "next": None})
    assert completed(acme, "tollgate rpc tokens show c") == ["ci"]
    served = [{"network": "eth/mainnet", "url": "https://t.example.com/x/eth/mainnet"}]
    api.on("GET", "networks", {"items": served, "next": None})
    assert completed(acme, "tollgate rpc call eth/") == ["eth/mainnet"]
    api.on("GET", "networks", {"items": served, "next": None})
    assert completed(acme, "tollgate rpc logs --network e") == ["eth/mainnet"]
    for command in ("tollgate rpc logs --token ", "tollgate usage --token "):
        api.on("GET", "teams/acme/tokens?limit=1000", {"items": [TOKEN], "next": None})
        assert completed(acme, command) == ["ci", TOKEN["id"]]
    for command in ("tollgate usage --month 2", "tollgate invoices show 2"):
        months = completed(acme, command)
        assert len(months) == 12
        assert months == sorted(months, reverse=True)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("shell", "file"),
    [
        ("bash", ".local/share/bash-completion/completions/tollgate"),
        ("zsh", ".local/share/zsh/site-functions/_tollgate"),
        ("fish", ".config/fish/completions/tollgate.fish"),
    ],
)
def test_install_puts_the_script_where_the_shell_looks(tool: Tool, tmp_path: Path, shell: str, file: str) -> None:
    ran = tool.process("completion", "install", env={"SHELL": f"/bin/{shell}", "HOME": str(tmp_path)})
    assert (ran.code, f"Wrote {tmp_path / file}" in ran.err) == (0, True)
    assert "_TOLLGATE_COMPLETE" in (tmp_path / file).read_text()
