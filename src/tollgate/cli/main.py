"""The `tollgate` command. Sub-commands are imported when they are called, so that help is quick."""

from __future__ import annotations

import importlib
import sys

import click

from tollgate import __version__
from tollgate.errors import TollgateError

# Name -> (module, attribute, one line of help). The help stands here so that listing imports nothing.
_COMMANDS = {
    "serve": ("tollgate.cli.serve", "serve", "Run the service."),
    "demo": ("tollgate.cli.demo", "demo", "Run the service with a simulated chain, to try it out."),
    "migrate": ("tollgate.cli.serve", "migrate", "Bring the database to this version's schema."),
    "config": ("tollgate.cli.config", "config", "Check and show settings."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - Click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, row[2]) for name, row in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="tollgate")
def cli() -> None:
    """Blockchain RPC access that anyone can host.

    Try it: tollgate demo
    """


def main() -> None:
    """Run the tool. A foreseen failure is one message and exit code 1, never a trace."""
    try:
        cli(prog_name="tollgate")
    except TollgateError as error:
        click.echo(f"tollgate: {error}", err=True)
        sys.exit(1)
