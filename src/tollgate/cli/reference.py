"""The reference page of the commands, `docs/reference/commands.md`, made from the commands themselves.

Owns the page's layout. It must not name a single command.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from tollgate.cli.main import cli

_INTRODUCTION = """\
# Commands

<!-- Written by `make reference` from `src/tollgate/cli`. Change it there. -->

Data goes to standard output, words to standard error. `--json` prints one object for one thing and
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
    return _INTRODUCTION + "".join(_sections(cli, ("tollgate",)))


def _sections(group: click.Group, path: tuple[str, ...]) -> Iterator[str]:
    parent = click.Context(group, info_name=" ".join(path))
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        assert command is not None  # noqa: S101 - it was listed
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
