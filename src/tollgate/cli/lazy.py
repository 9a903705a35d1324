"""A Click group whose commands are imported when they are called, and not before.

Owns how commands are found, listed, suggested and completed. Listing and completing names import nothing: a table
has each command's line of help. Commands must not be named here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    import difflib
    from collections.abc import Mapping

    from click import shell_completion
else:
    difflib, shell_completion = LazyModule("difflib"), LazyModule("click.shell_completion")  # not for help


class LazyCommand(NamedTuple):
    """Where a command is found (`module:attribute`, or the command itself), and its one line of help."""

    target: str | click.Command
    help: str
    example: str = ""
    """For a group without an example of its own."""


class Group(click.Group):
    """A group with lazy commands beside its own, in the order of their definition."""

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - Click's signature
        return [*self.commands, *self.lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = self.lazy.get(cmd_name)
        if lazy is None:
            return super().get_command(ctx, cmd_name)
        if isinstance(lazy.target, click.Command):
            return lazy.target
        module, _, attribute = lazy.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        if lazy.example and not command.epilog:
            command.epilog = f"Example: {lazy.example}"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first word names, or suggest the most similar one."""
        name = args[0]
        if name not in self.list_commands(ctx) and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {name!r}.{self._suggestion(ctx, name)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.line(name)) for name in (*self.commands, *self.lazy)])

    def line(self, name: str) -> str:
        """Return a command's one line of help, without importing it."""
        if name in self.lazy:
            return self.lazy[name].help
        return self.commands[name].get_short_help_str(limit=100)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[shell_completion.CompletionItem[str]]:
        """Complete a command's name, or an option of the group itself."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [shell_completion.CompletionItem(name, help=self.line(name)) for name in names]
        # Not Click's method, which would import every command for its help.
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def _suggestion(self, ctx: click.Context, name: str) -> str:
        for deeper, (target, *_) in self.lazy.items():
            if isinstance(target, Group) and name in target.list_commands(ctx):
                return f" Did you mean '{deeper} {name}'?"
        near = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
        return f" Did you mean {near[0]!r}?" if near else ""
