"""The `tollgate` command: its tree of commands, and the one place where failures become exit codes.

Commands are imported when they are called, so that help is fast: only Click and the error trees are loaded here.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from tollgate import __version__, commit
from tollgate.cli.failures import INTERRUPTED
from tollgate.cli.lazy import Group, LazyCommand
from tollgate.cli.show import note
from tollgate.errors import TollgateError

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.group(
    cls=Group,
    lazy={
        "tokens": LazyCommand("tollgate.cli.rpc_tokens:tokens", "API tokens, the credentials of programs."),
        "whitelist": LazyCommand(
            "tollgate.cli.rpc_whitelist:whitelist", "Domains whose pages call without a token."
        ),
        "networks": LazyCommand(
            "tollgate.cli.rpc_call:networks", "Networks that are served, and their addresses."
        ),
        "call": LazyCommand("tollgate.cli.rpc_call:call", "Call a method of a network, from here."),
        "logs": LazyCommand("tollgate.cli.rpc_logs:logs", "Request logs: calls, their callers and outcomes."),
    },
    epilog="Example: tollgate rpc tokens create ci --team acme",
)
def rpc() -> None:
    """Who may call /x/, and what was called."""


_FOR_TEAMS = {
    "auth": LazyCommand("tollgate.cli.auth:auth", "Log in and out, and see who is logged in."),
    "teams": LazyCommand("tollgate.cli.teams:teams", "Teams, their members and invitations."),
    "rpc": LazyCommand(rpc, "Who may call /x/, and what was called."),
    "usage": LazyCommand("tollgate.cli.usage:usage", "Usage of a team, its cost and its spending cap."),
    "invoices": LazyCommand("tollgate.cli.usage:invoices", "Invoices of a team, by month."),
    "audit": LazyCommand("tollgate.cli.teams:audit", "Show who changed what in a team."),
    "account": LazyCommand("tollgate.cli.account:account", "Your account and its personal access tokens."),
    "open": LazyCommand("tollgate.cli.open:open_", "Open a page of the console in the browser."),
    "api": LazyCommand("tollgate.cli.rpc_call:api", "Send a request to the management API."),
    "completion": LazyCommand("tollgate.cli.completion:completion", "Print a script that completes commands."),
    "demo": LazyCommand("tollgate.cli.demo:demo", "Run the service with a simulated chain."),
}
_FOR_OPERATORS = {
    "init": LazyCommand(
        "tollgate.cli.init:init", "Write the settings of a service; create its first account and team."
    ),
    "serve": LazyCommand("tollgate.cli.serve:serve", "Run the service."),
    "collect": LazyCommand(
        "tollgate.cli.serve:collect", "Collect recorded calls into the ledger, without the service."
    ),
    "nodes": LazyCommand("tollgate.cli.serve:nodes", "List the nodes that share a store."),
    "doctor": LazyCommand("tollgate.cli.doctor:doctor", "Check that spool, logs, usage and invoices agree."),
    "upstreams": LazyCommand("tollgate.cli.upstreams:upstreams", "Show which upstreams are in rotation, and why."),
    "reload": LazyCommand("tollgate.cli.reload:reload", "Apply changed settings to the running service."),
    "backup": LazyCommand(
        "tollgate.cli.backup:backup", "Copy databases, spool and pepper, while the service runs."
    ),
    "restore": LazyCommand("tollgate.cli.backup:restore", "Put a backup into an empty data folder."),
    "migrate": LazyCommand("tollgate.cli.serve:migrate", "Bring the database to this version's schema."),
    "config": LazyCommand(
        "tollgate.cli.config:config", "Check and show settings.", example="tollgate config check"
    ),
    "admin": LazyCommand("tollgate.cli.admin:admin", "Accounts and teams, for the operator of the service."),
    "operator": LazyCommand("tollgate.cli.operator:operator", "All teams, processes and upstreams, over the API."),
}


# Commands of other tools.
_ELSEWHERE = {"login": "auth login", "logout": "auth logout", "whoami": "auth status"}


class _Root(Group):
    def _suggestion(self, ctx: click.Context, name: str) -> str:
        if name in _ELSEWHERE:
            return f" Did you mean 'tollgate {_ELSEWHERE[name]}'?"
        return super()._suggestion(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands for teams, then those for the operator."""
        for title, commands in (("Commands", _FOR_TEAMS), ("Commands for the operator", _FOR_OPERATORS)):
            with formatter.section(title):
                formatter.write_dl([(name, command.help) for name, command in commands.items()])


def _version(ctx: click.Context) -> NoReturn:
    built = commit()
    click.echo(f"tollgate {__version__}" + (f" ({built})" if built else ""))
    ctx.exit()


@click.group(
    cls=_Root,
    lazy={**_FOR_TEAMS, **_FOR_OPERATORS},
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: tollgate auth login",
)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda ctx, _, given: _version(ctx) if given else None,
    help="Show version and commit, and exit.",
)
def cli() -> None:
    """Blockchain RPC access that anyone can host. Try it: tollgate demo"""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code. An expected failure is a message, never a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal cannot encode must not fail the command.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = cli.main(arguments, prog_name="tollgate", standalone_mode=False)
    except (KeyboardInterrupt, click.Abort):  # Click turns the first into the second
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except TollgateError as error:
        note(f"tollgate: {error}")
        return getattr(error, "exit_code", 1)
    except BrokenPipeError:
        # Buffered output is discarded, so that exit does not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code if isinstance(code, int) else 0
