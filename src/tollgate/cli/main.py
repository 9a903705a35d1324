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
from tollgate.cli.lazy import Group, Row
from tollgate.cli.show import note
from tollgate.errors import TollgateError

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.group(
    cls=Group,
    rows={
        "tokens": Row("tollgate.cli.rpc_tokens:tokens", "API tokens, the credentials of programs."),
        "whitelist": Row("tollgate.cli.rpc_whitelist:whitelist", "Domains whose pages call without a token."),
        "networks": Row("tollgate.cli.rpc_call:networks", "Networks that are served, and their addresses."),
        "call": Row("tollgate.cli.rpc_call:call", "Call a method of a network, from here."),
        "logs": Row(
            "tollgate.cli.rpc_logs:logs",
            "Request logs: calls, their callers and outcomes.",
        ),
    },
    epilog="Example: tollgate rpc tokens create ci --team acme",
)
def rpc() -> None:
    """Who may call /x/, and what was called."""


_COMMANDS = {
    "auth": Row("tollgate.cli.auth:auth", "Log in and out, and see who is logged in."),
    "teams": Row("tollgate.cli.teams:teams", "Teams, their members and invitations."),
    "rpc": Row(rpc, "Who may call /x/, and what was called."),
    "usage": Row("tollgate.cli.usage:usage", "Usage of a team, its cost and its spending cap."),
    "invoices": Row("tollgate.cli.usage:invoices", "Invoices of a team, by month."),
    "audit": Row("tollgate.cli.teams:audit", "Show who changed what in a team."),
    "account": Row("tollgate.cli.account:account", "Your account and its personal access tokens."),
    "api": Row("tollgate.cli.rpc_call:api", "Send a request to the management API."),
    "completion": Row("tollgate.cli.completion:completion", "Print a script that completes commands."),
    "init": Row("tollgate.cli.init:init", "Write the settings of a service; create its first account and team."),
    "serve": Row("tollgate.cli.serve:serve", "Run the service."),
    "demo": Row("tollgate.cli.demo:demo", "Run the service with a simulated chain."),
    "collect": Row("tollgate.cli.serve:collect", "Collect recorded calls into the ledger, without the service."),
    "nodes": Row("tollgate.cli.serve:nodes", "List the nodes that share a store."),
    "doctor": Row("tollgate.cli.doctor:doctor", "Check that spool, logs, usage and invoices agree."),
    "upstreams": Row("tollgate.cli.upstreams:upstreams", "Show which upstreams are in rotation, and why."),
    "reload": Row("tollgate.cli.reload:reload", "Apply changed settings to the running service."),
    "backup": Row("tollgate.cli.backup:backup", "Copy databases, spool and pepper, while the service runs."),
    "restore": Row("tollgate.cli.backup:restore", "Put a backup into an empty data folder."),
    "migrate": Row("tollgate.cli.serve:migrate", "Bring the database to this version's schema."),
    "config": Row("tollgate.cli.config:config", "Check and show settings.", example="tollgate config check"),
    "admin": Row("tollgate.cli.admin:admin", "Accounts and teams, for the operator of the service."),
    "operator": Row("tollgate.cli.operator:operator", "All teams, processes and upstreams, over the API."),
}


# Listed in one line of the main help, which must fit a screen.
_FOR_THE_OPERATOR = (
    "init",
    "serve",
    "collect",
    "nodes",
    "doctor",
    "upstreams",
    "reload",
    "backup",
    "restore",
    "migrate",
    "config",
    "admin",
    "operator",
)


# Commands of other tools.
_ELSEWHERE = {"login": "auth login", "logout": "auth logout", "whoami": "auth status"}


class _Root(Group):
    def _suggestion(self, ctx: click.Context, name: str) -> str:
        if name in _ELSEWHERE:
            return f" Did you mean 'tollgate {_ELSEWHERE[name]}'?"
        return super()._suggestion(ctx, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands for teams one by one, and those for the operator in one line."""
        names = [name for name in self.list_commands(ctx) if name not in _FOR_THE_OPERATOR]
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.line(name)) for name in names])
            formatter.write_text(f"For the operator: {', '.join(_FOR_THE_OPERATOR)}")


def _version(ctx: click.Context) -> NoReturn:
    built = commit()
    click.echo(f"tollgate {__version__}" + (f" ({built})" if built else ""))
    ctx.exit()


@click.group(
    cls=_Root,
    rows=_COMMANDS,
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
    """Run the tool and end the process."""
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
        _discard_output()
        return 1
    return code if isinstance(code, int) else 0


def _discard_output() -> None:
    """Discard buffered output after a broken pipe, so that exit does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
