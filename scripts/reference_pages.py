"""The reference pages, written from the code by `make reference`.

A test fails when a page in docs/reference is not what this module writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import click

from tollgate.chains.access import domain_refusal_of
from tollgate.chains.catalogue import Catalogue
from tollgate.chains.methods import Block, Contract, Effect, Follows
from tollgate.cli.main import cli
from tollgate.control.api.errors import API_PROBLEMS
from tollgate.control.problems import ALL_PROBLEMS
from tollgate.core.methods import Policy
from tollgate.core.roles import ALLOWED, Action, Role
from tollgate.errors import ALL_REFUSALS
from tollgate.settings.environment import RESERVED
from tollgate.settings.schema import Setting, describe, help_of
from tollgate.shm import metrics

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
_MADE = "<!-- Written by `make reference` from {source}. Change it there. -->\n"


def errors_page() -> str:
    """Every refusal under `/x/`."""
    rows = "".join(
        f"| `{each.reason}` | {each.status} | {each.code} | {each.when} | {each.hint} |\n" for each in ALL_REFUSALS
    )
    return (
        "# Errors\n\n"
        + _MADE.format(source="`src/tollgate/errors.py`")
        + "\nEvery refusal under `/x/` is a JSON-RPC error object:\n\n"
        "```json\n"
        '{"jsonrpc": "2.0", "id": 1, "error": {"code": -32016, "message": "what to do next",\n'
        ' "data": {"reason": "token_invalid", "request_id": "…"}}}\n'
        "```\n\n"
        "`id` is the caller's, or null where it could not be read. `request_id` is the `X-Request-Id` of the "
        "answer. A node's own error passes through unchanged, with HTTP 200; so does a batch, with one answer for "
        "each call, unless the whole of it is refused.\n\n"
        "Checked in this order; the first that applies is returned: 405, 404, 415, 413 (bytes), credentials "
        "(401, 403), 402, 429 (one call), 400, 413 (batch), 429 (the other calls of a batch), "
        "policy for each call.\n\n"
        "| reason | HTTP | code | when | default message |\n|---|---|---|---|---|\n" + rows
    )


def metrics_page() -> str:
    rows = "".join(
        f"| `{spec.page_name}` | {spec.kind.value} "
        f"| {', '.join(f'`{label}`' for label in spec.labels)} | {spec.help} |\n"
        for spec in metrics.ALL
    )
    return (
        "# Metrics\n\n"
        + _MADE.format(source="`src/tollgate/shm/metrics.py`")
        + "\nServed for Prometheus at `/metrics` on `server.metrics_host` and `server.metrics_port` "
        "(127.0.0.1:8403), never on the public port. Counts of all workers are added up, and a worker that dies "
        "takes none with it. "
        "Labels come from the settings and the method catalogues; callers cannot invent new ones.\n\n"
        "| metric | kind | labels | meaning |\n|---|---|---|---|\n" + rows
    )


_METHODS = """
What the catalogues know of each method, and who may call it. [How operators open more](../upstreams.md#methods).

- A token without a list of contracts may call everything but what steers a node; unknown methods too, unless the
  network is `strict`.
- A whitelisted domain may call what is cheap and steers nothing. `domain_methods` opens more by name.
- A token for some contracts may call what reads the chain, its own filters, and its contracts.
"""


def methods_page() -> str:
    """Every method of the catalogues."""
    parts = ["# Methods\n\n", _MADE.format(source="`src/tollgate/chains/eth.py` and `starknet.py`"), _METHODS]
    for family in ("eth", "starknet"):
        catalogue = Catalogue(family)
        parts.append(
            f"\n## `{family}`\n\n| method | what it does | cost | domains | tokens for some contracts |\n"
        )
        parts.append("|---|---|---|---|---|\n")
        for method in filter(None, map(catalogue.method, sorted(catalogue.methods))):
            domains = "" if domain_refusal_of(method.name, catalogue, Policy()) else "yes"
            does, bound = _does(method.does)
            parts.append(f"| `{method.name}` | {does} | {method.cost.value} | {domains} | {bound} |\n")
    return "".join(parts)


def _does(does: Effect | Contract | Block | Follows) -> tuple[str, str]:
    """What a method does, and whether a token for some contracts may call it."""
    match does:
        case Effect():
            return does.value, "yes" if does in (Effect.CHAIN, Effect.OWN) else ""
        case Contract():
            place = f"{does.name or f'params[{does.position}]'}{does.member and f'.{does.member}'}"
            overrides = "" if does.overrides is None else ", without overrides of state"
            return f"reads the contracts in `{place}`", f"its contracts{overrides}"
        case Block():
            return "reads a block, with or without its transactions", "without transactions"
        case Follows():
            chain = ", ".join(f"`{topic}`" for topic in does.chain)
            return "follows what its first argument names", f"{chain}, and `{does.events}` of its contracts"


def problems_page() -> str:
    """Every problem of the management API."""
    every = sorted({*ALL_PROBLEMS, *API_PROBLEMS}, key=lambda each: (each.status, each.reason))
    rows = "".join(f"| `{each.reason}` | {each.status} | {each.when} |\n" for each in every)
    return (
        "# Problems of the management API\n\n"
        + _MADE.format(source="`src/tollgate/control/problems.py`")
        + "\nEvery refusal under `/api/v1` is a problem of RFC 9457, `application/problem+json`:\n\n"
        "```json\n"
        '{"type": "about:blank", "title": "Forbidden", "status": 403, "reason": "no_such_team",\n'
        ' "detail": "There is no team \\"acne\\" that you belong to. Did you mean \\"acme\\"?",\n'
        ' "request_id": "…", "team": "acne", "suggestion": "acme"}\n'
        "```\n\n"
        "`detail` contains what to do next. Further members depend on the reason. The endpoints under "
        "`/api/v1/oauth` answer errors as RFC 6749 and RFC 8628 define instead.\n\n"
        "| reason | HTTP | when |\n|---|---|---|\n" + rows
    )


def roles_page() -> str:
    """Who may do what in a team."""
    head = "| a member may | " + " | ".join(Role) + " |\n|---|" + "---|" * len(Role) + "\n"
    rows = "".join(
        f"| {action.value} | " + " | ".join("yes" if role in ALLOWED[action] else "" for role in Role) + " |\n"
        for action in Action
    )
    return (
        "# Roles\n\n"
        + _MADE.format(source="`src/tollgate/core/roles.py`")
        + "\n"
        + head
        + rows
        + "\nOnly an owner may invite, remove or change an owner, or make someone owner. Everybody may leave, but "
        "the last owner stays. Someone who does not belong to a team learns nothing about it, not even whether it "
        "exists.\n"
    )


_COMMANDS = """\
# Commands

<!-- Written by `make reference` from `src/tollgate/cli`. Change it there. -->

Data goes to standard output, messages to standard error. `--json` prints one object for one thing and
`{"items": […], "next": "<cursor or null>"}` for a list. `--team` may be left out where `TOLLGATE_TEAM` is
set or the login chose a default. Deletions ask on a terminal unless `--yes`.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed |
| 2 | wrong usage |
| 3 | not found |
| 4 | not logged in |
| 5 | not allowed, or no such team |
| 130 | interrupted |

| variable | meaning |
|---|---|
| `TOLLGATE_URL` | the service, instead of the one that was logged in to |
| `TOLLGATE_TOKEN` | a personal access token, instead of a login |
| `TOLLGATE_TEAM` | the team, instead of `--team` |
| `NO_COLOR` | no colours |
"""


def commands_page() -> str:
    """Write the whole page as Markdown."""
    return _COMMANDS + "".join(_sections(cli, ("tollgate",)))


def _sections(group: click.Group, path: tuple[str, ...]) -> Iterator[str]:
    parent = click.Context(group, info_name=" ".join(path))
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        assert command is not None
        here = (*path, name)
        if isinstance(command, click.Group):
            if command.invoke_without_command:
                yield _section(command, here)
            yield from _sections(command, here)
        else:
            yield _section(command, here)


def _section(command: click.Command, path: tuple[str, ...]) -> str:
    context = click.Context(command, info_name=" ".join(path))
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [f"\n## `{' '.join(path)}`\n\n{_text(command.help)}\n\n```\n{' '.join(path)} {usage}\n```\n"]
    records = [
        record
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and "--help" not in parameter.opts
        if (record := parameter.get_help_record(context)) is not None
    ]
    if records:
        parts.append("\n| option | meaning |\n|---|---|\n")
        parts.extend(f"| `{_cell(option)}` | {_cell(_text(text))} |\n" for option, text in records)
    if command.epilog:
        parts.append(f"\n{_text(command.epilog)}\n")
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _text(text: str | None) -> str:
    return " ".join((text or "").replace("\b", "").split())


_SETTINGS = """\
# Settings

<!-- Made from src/tollgate/settings/model.py; change the definitions there, then run `make reference`. -->

Settings come from one TOML file and from environment variables; a variable wins over the file, the file
over the default. The file is the one given by `--config`, else by `TOLLGATE_CONFIG`, else `tollgate.toml`
in the current folder. [`tollgate.example.toml`](../../tollgate.example.toml) is one to start from.

- `tollgate config check` reports errors with their line or variable, or lists the networks that are served.
- `tollgate config show` lists every value and where it came from, secrets masked.

A variable's name is `TOLLGATE_`, then the key in capitals with `__` between its levels: `server.port` is
`TOLLGATE_SERVER__PORT`. A string is taken as it is; anything else is written as in TOML: `true`, `30.0`,
`["10.0.0.0/8"]`. A hyphen in the name of a family or network becomes `_`. Upstreams are counted from 0, in
the order of the file, so a single secret can be kept out of it:

```sh
TOLLGATE_FAMILIES__ETH__MAINNET__UPSTREAMS__0__URL=https://eth-mainnet.example-provider.com/YOUR-KEY
TOLLGATE_FAMILIES__ETH__SEPOLIA__UPSTREAMS='[{name = "local", url = "http://127.0.0.1:8545"}]'
```

A relative path in the file starts at the file's folder; in a variable or a default, at the current folder.
"""


def settings_page() -> str:
    """Write the whole page as Markdown."""
    reserved = ", ".join(f"`{name}`" for name in sorted(RESERVED))
    parts = [_SETTINGS, f"These variables are no settings and are left alone: {reserved}.\n"]
    for table, rows in groupby(describe(), key=_table):
        # An array of tables is written with doubled brackets and without a number.
        header = f"[{table.removesuffix('[<n>]')}]" if table.endswith("[<n>]") else table
        title = f"`[{header}]`" if table else "Top level"
        about = help_of(table)
        parts.append(f"## {title}\n" + (f"\n{about}\n" if about else "") + f"\n{_rows(rows)}")
    return "\n".join(parts)


def _table(row: Setting) -> str:
    return row.key.rpartition(".")[0]


def _rows(rows: Iterable[Setting]) -> str:
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for row in rows:
        name = row.key.rpartition(".")[2]
        default = "required" if row.required else f"`{json.dumps(row.default)}`"
        about = row.help + (" Masked when shown." if row.secret else "")
        lines.append(f"| `{name}` | {row.kind} | {default} | {about}<br>`{row.variable}` |")
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """File name -> page."""
    return {
        "settings.md": settings_page(),
        "errors.md": errors_page(),
        "metrics.md": metrics_page(),
        "methods.md": methods_page(),
        "problems.md": problems_page(),
        "roles.md": roles_page(),
        "commands.md": commands_page(),
    }


def main() -> None:
    """Write the pages into the source tree."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
