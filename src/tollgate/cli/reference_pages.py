"""The reference pages, written from the code: `python -m tollgate.cli.reference_pages` (or `make reference`).

A test fails when a page in docs/reference is not what this module writes.
"""

from __future__ import annotations

from pathlib import Path

from tollgate.cli.reference import commands_page
from tollgate.control.api.errors import API_PROBLEMS
from tollgate.control.problems import ALL_PROBLEMS
from tollgate.core.roles import ALLOWED, Action, Role
from tollgate.errors import ALL_REFUSALS
from tollgate.settings.reference import settings_page
from tollgate.shm import metrics

FOLDER = Path(__file__).parents[3] / "docs" / "reference"
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
        "Checked in this order, and the first that applies answers: 405, 404, 415, 413 (bytes), credentials "
        "(401, 403), 402, 429 (one call), 400, 413 (batch), 429 (the other calls of a batch), "
        "policy for each call.\n\n"
        "| reason | HTTP | code | when | message, if nothing more exact can be said |\n|---|---|---|---|---|\n"
        + rows
    )


def metrics_page() -> str:
    """Every metric."""
    rows = "".join(
        f"| `{spec.name}{'_total' if spec.kind is metrics.Kind.COUNTER else ''}` | {spec.kind.value} "
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
        "`detail` says what to do next. Further members depend on the reason. The endpoints under `/api/v1/oauth` "
        "answer errors as RFC 6749 and RFC 8628 say instead.\n\n"
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


def pages() -> dict[str, str]:
    """File name -> page."""
    return {
        "settings.md": settings_page(),
        "errors.md": errors_page(),
        "metrics.md": metrics_page(),
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
