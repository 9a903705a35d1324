"""`tollgate init`: writes settings, and creates the first account and team.

Prompts on a terminal for what the options do not give; tests every upstream before it writes. Owns the prompts,
the output and the file; `gateway/prober/examine.py` tests upstreams.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from tollgate.api.me import NewPersonalToken
from tollgate.api.teams import NewTeam
from tollgate.chains.catalogue import Catalogue
from tollgate.cli.admin import base_url, control_plane, password_from, show_values
from tollgate.cli.failures import Failure, WrongUsage
from tollgate.cli.options import json_option
from tollgate.cli.show import note
from tollgate.cli.upstream_checks import KNOWN_IDS, try_upstreams, wrong
from tollgate.control.commands import checked
from tollgate.control.passwords import Passwords
from tollgate.control.service_context import OPERATOR, email_of
from tollgate.settings import file as settings_file
from tollgate.settings.environment import RESERVED
from tollgate.settings.model import Settings, UpstreamSettings
from tollgate.settings.providers import PROVIDERS, expand, provider_of
from tollgate.settings.rules import rules_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollgate.control.plane import ControlPlane
    from tollgate.gateway.prober.examine import Examined

_PATH = re.compile(r"[a-z0-9-]{1,32}/[a-z0-9-]{1,32}")

Upstream = tuple[str, str, UpstreamSettings]
"""A network's path, the address as it was given, and the settings of the upstream."""


@click.command(epilog="Example: tollgate init --upstream eth/mainnet=alchemy://KEY --team acme")
@click.option("--upstream", "upstreams", multiple=True, metavar="FAMILY/NETWORK=URL", help="Can be repeated.")
@click.option("--email", help="Address of the first account.")
@click.option("--team", metavar="NAME", help="The account's team.")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@click.option("--generate", is_flag=True, help="Generate a password and print it.")
@click.option("--personal-token", is_flag=True, help="Also print a token for TOLLGATE_TOKEN.")
@click.option("--set", "values", multiple=True, metavar="KEY=VALUE", help="A setting: server.port=8000")
@click.option("--offline", is_flag=True, help="Do not test the upstreams.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@json_option
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    help="Default: $TOLLGATE_CONFIG, or tollgate.toml",
)
def init(
    upstreams: tuple[str, ...],
    email: str | None,
    team: str | None,
    password_stdin: bool,
    generate: bool,
    personal_token: bool,
    values: tuple[str, ...],
    offline: bool,
    force: bool,
    as_json: bool,
    config_file: str | None,
) -> None:
    """Write a settings file; create the first account, an operator, and its team.

    Run it as the user of the service. Tests each upstream: chain id, head, archive, missing methods, latency.
    Prompts on a terminal for what is missing.
    """
    path = Path(config_file or os.environ.get("TOLLGATE_CONFIG") or settings_file.DEFAULT_FILE)
    if path.exists() and not force:
        raise Failure(f"{path} exists. Edit it, give another --config, or overwrite it with --force.")
    person = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    given = [_setting(text) for text in values]
    chosen = [_upstream(text, number) for number, text in enumerate(upstreams)]
    if not chosen and person:
        chosen = _prompt_for_upstreams()
    if not chosen:
        raise WrongUsage("Which upstreams? Give --upstream FAMILY/NETWORK=URL, such as eth/mainnet=publicnode://")
    found = [] if offline else _try(chosen, person=person, quiet=as_json)
    if email is None and person:
        email = _prompt("E-mail address of the first account (empty: none)") or None
    if email is not None:
        email = email_of(email)
        if team is None:
            team = click.prompt("Its team", default="main", err=True) if person else None
        if team is not None:
            checked(NewTeam(team))
    password = ""
    if email is not None:
        password = password_from(stdin=password_stdin, generate=generate)
        Passwords().check_new(password, email)  # before anything is written
    settings = _write(path, _file(given, chosen, found))
    made: dict[str, str | bool | None] = {"config": str(path), "url": base_url(settings)}
    if email is not None:
        made |= {"data_dir": settings.data_dir, "email": email, "team": team}
        made |= {"password": password} if generate else {}
        token = _account(settings, email, password, team, personal_token=personal_token)
        made |= {"personal_token": token} if token else {}
    if as_json:
        click.echo(json.dumps(made))
    else:
        show_values({name: value for name, value in made.items() if name != "url"})
        note(_next(path, str(made["url"]), email, team))


def _upstream(text: str, number: int) -> Upstream:
    path, separator, url = text.partition("=")
    if not separator or not _PATH.fullmatch(path):
        raise WrongUsage(
            f"--upstream must be FAMILY/NETWORK=URL, such as eth/sepolia=http://127.0.0.1:8545: "
            f"number {number + 1} does not."
        )
    problem = _problem(path, url)
    if problem:
        raise WrongUsage(f"--upstream {path}=…: {problem}.")
    return path, url, _settings(path, url, number)


def _problem(path: str, url: str) -> str:
    if provider_of(url) is None and not re.match(r"https?://[^/\s]", url):
        shorthands = ", ".join(provider.form for provider in PROVIDERS.values())
        return f"the address must start with http:// or https://, or be one of {shorthands}"
    family, _, name = path.partition("/")
    found = rules_for(("families", family, name, "upstreams", 0, "url"), url)
    return next((problem.partition("` ")[2] or problem for _, problem in found), "")


def _settings(path: str, url: str, number: int) -> UpstreamSettings:
    family, _, network = path.partition("/")
    provider = provider_of(url)
    host = urlsplit(url).hostname or "node"
    name = provider or (f"node-{number + 1}" if re.fullmatch(r"[0-9.:]+|localhost", host) else host)
    address = url if provider is None else expand(url, family, network).url
    return UpstreamSettings(name=name[:64], url=address)


def _prompt(what: str, default: str = "") -> str:
    """Prompt for a text; empty if the answer is empty and there is no default."""
    return str(click.prompt(what, default=default, show_default=bool(default), err=True))


def _prompt_for_upstreams() -> list[Upstream]:
    shorthands = ", ".join(provider.form for provider in PROVIDERS.values())
    note(f"Which networks, and from where? An address is the URL of a node, or one of {shorthands}.")
    chosen: list[Upstream] = []
    while True:
        path = _prompt("Network (empty: done)", "" if chosen else "eth/mainnet")
        if not path:
            return chosen
        if not _PATH.fullmatch(path):
            note("A network is written FAMILY/NETWORK, such as eth/mainnet or starknet/sepolia.")
            continue
        # Echoed although it may contain a key: a hidden prompt would hide typing errors.
        url = click.prompt(f"Address for {path}", err=True).strip()
        if problem := _problem(path, url):
            note(f"No: {problem}.")
            continue
        chosen.append((path, url, _settings(path, url, len(chosen))))


def _try(chosen: list[Upstream], *, person: bool, quiet: bool) -> list[Examined]:
    """Test all upstreams; fail if one cannot be used, unless a person confirms."""
    note(f"Trying {len(chosen)} upstream{'s' if len(chosen) > 1 else ''} …")
    found = try_upstreams([(path, upstream) for path, _, upstream in chosen], quiet=quiet)
    tried = [(path, each) for (path, _, _), each in zip(chosen, found, strict=True)]
    for path, each in tried:
        known = KNOWN_IDS.get(path)
        if known and each.chain_id and each.chain_id != known:
            note(f"Note: {each.name} reports chain id {each.chain_id}, while {path} is known as {known}.")
    if problems := wrong(tried, {}):
        for problem in problems:
            note(problem)
        if not person or not click.confirm("Write the settings anyway?", err=True):
            raise Failure("Nothing was written. Check the addresses, or give --offline to write them untested.")
    return found


def _setting(text: str) -> tuple[str, str, str]:
    """Read `section.key=value` into its parts, the value as TOML."""
    key, separator, value = text.partition("=")
    section, _, name = key.rpartition(".")
    if not separator or not re.fullmatch(r"[a-z_]+", name) or not re.fullmatch(r"[a-z_]*", section):
        raise WrongUsage("--set must be KEY=VALUE, such as server.port=8000.")
    try:
        tomllib.loads(f"value = {value}")
    except ValueError:
        value = _quoted(value)  # a string without quotes
    return section, name, value


def _file(given: Sequence[tuple[str, str, str]], chosen: Sequence[Upstream], found: Sequence[Examined]) -> str:
    lines = [
        "# Settings of a Tollgate service. `tollgate config check` shows what is wrong with them,",
        "# `tollgate config show` lists all that can be set.",
    ]
    for section in sorted({section for section, _, _ in given}):
        lines += ["", *([f"[{section}]"] if section else [])]
        lines += [f"{name} = {value}" for its, name, value in given if its == section]
    known = dict(zip((id(each) for each in chosen), found, strict=False))
    names: set[tuple[str, str]] = set()
    for path in dict.fromkeys(path for path, _, _ in chosen):
        key = f"families.{path.replace('/', '.')}"
        of_path = [each for each in chosen if each[0] == path]
        chains = {known[id(each)].chain_id for each in of_path if id(each) in known} - {""}
        about = [f"chain_id = {_quoted(chains.pop())}"] if len(chains) == 1 else []
        if Catalogue(path.partition("/")[0]).methods:
            about.append("strict = true  # methods outside the catalogue need `open_methods`")
        lines += ["", f"[{key}]", *about] if about else []
        for each in of_path:
            name = each[2].name
            while (path, name) in names:
                name = f"{name}-2"
            names.add((path, name))
            lines += ["", f"[[{key}.upstreams]]", f"name = {_quoted(name)}", f"url = {_quoted(each[1])}"]
            if examined := known.get(id(each)):
                lines += ["archive = false"] if examined.archive is False else []
                lines += [f"# lacks {', '.join(examined.lacking)}"] if examined.lacking else []
    return "\n".join(lines) + "\n"


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _write(path: Path, text: str) -> Settings:
    """Write the file, readable by its owner alone (URLs contain keys), if its settings are valid; return them."""
    # The file just written, whatever the environment names.
    environ = {name: value for name, value in os.environ.items() if name not in RESERVED}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(path.name + ".new")
        with os.fdopen(
            os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(text)
        try:
            settings = settings_file.load(fresh, environ).settings
        except settings_file.SettingsError as error:
            fresh.unlink()
            # Line numbers of a temporary file are useless.
            problems = (re.sub(rf"^{re.escape(str(fresh))}:\d+: ", "", each) for each in error.problems)
            raise Failure(f"Nothing was written: {'; '.join(problems)}. Check --set and --upstream.") from None
        fresh.replace(path)
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror}.") from error
    return settings


def _account(settings: Settings, email: str, password: str, team: str | None, *, personal_token: bool) -> str:
    """Create the account, unless it exists; return a personal access token if requested."""

    async def make(plane: ControlPlane) -> str:
        account = await plane.admin.create_account(email, password, team=team, operator=True)
        if not personal_token:
            return ""
        async with plane.context.store.changing() as records:
            _, secret = await plane.logins.add_personal(records, OPERATOR, account, NewPersonalToken("init"))
        return secret

    made: list[str] = []
    control_plane(settings, make, made.append)
    note(f"Created the operator's account {email}" + (f" and its team {team}." if team else "."))
    return made[0]


def _next(path: Path, url: str, email: str | None, team: str | None) -> str:
    found = settings_file.find(None, os.environ)
    config = "" if found is not None and found == path else f" --config {path}"
    steps = [f"tollgate serve{config}"]
    if email is None:
        steps.append(f"tollgate admin create-account EMAIL --team NAME{config}")
    steps += [f"tollgate auth login --url {url}", f"tollgate rpc tokens create first --team {team or 'NAME'}"]
    return "\n".join([f"Wrote {path}. Next:", "", *(f"  {step}" for step in steps[:3])])
