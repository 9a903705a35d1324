"""`tollgate rpc logs show`: one call, and its attempts as a waterfall."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tollgate.cli import show
from tollgate.cli.options import for_team
from tollgate.cli.rpc_logs import cells, duration
from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    from tollgate.api import logs as api
    from tollgate.cli.session import Session
else:
    api = LazyModule("tollgate.api.logs")  # not for help

_FIELDS = (
    "id", "time", "request", "network", "method", "status", "caller", "address", "cache", "cost", "duration",
    "upstream",
)  # fmt: skip


@click.command("show", epilog="Example: tollgate rpc logs show ent_9HqT2vKc5ZxBnW8mLrYdE3sUfGaJ --team acme")
@click.argument("entry", metavar="ENTRY")
@for_team
def show_log(session: Session, entry: str) -> None:
    """Show one call and its attempts at upstreams; `rpc logs --columns time,method,id` lists ids."""
    answer = session.client.call(api.SHOW, session.team, entry)
    if session.as_json:
        show.as_json(answer.raw)
        return
    log = answer.value
    show.fields(
        [
            *zip(_FIELDS, cells(log, _FIELDS), strict=True),
            ("bytes", f"{log.request_bytes} in, {log.response_bytes} out"),
            ("agent", log.user_agent),
            ("origin", log.origin),
            ("attempts", str(log.attempts)),
        ]
    )
    if log.trace:
        click.echo()
        _waterfall(log)


def _waterfall(log: api.Log) -> None:
    """Print the attempts, on a terminal with a lane for each."""
    whole = max(log.duration_us, *(attempt.end_us for attempt in log.trace))
    rows = [
        (
            attempt.upstream,
            show.lane(attempt.start_us, attempt.end_us, whole),
            duration(attempt.start_us),
            duration(attempt.end_us),
            f"HTTP {attempt.status}" if attempt.status else attempt.verdict.replace("_", " "),
        )
        for attempt in log.trace
    ]
    show.table(("UPSTREAM", show.BAR, "START", "END", "VERDICT"), rows, drop=(show.BAR,))
