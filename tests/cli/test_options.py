"""The command for the next page, and when things expire."""

from __future__ import annotations

import datetime
import shlex

import click
import pytest

from tollgate.cli.options import expiry
from tollgate.cli.session import next_command

NOW = datetime.datetime(2026, 11, 15, 12, 0, 0, tzinfo=datetime.UTC)


@click.command("list")
@click.option("--limit", default=100, help="x")
@click.option("--after", help="x")
@click.option("--team", help="x")
@click.option("--json", "as_json", is_flag=True, help="x")
@click.option("--errors", is_flag=True, help="x")
@click.option("--on/--off", "switch", default=None, help="x")
@click.option("--method", "-m", "methods", multiple=True, help="x")
def example(**_: object) -> None:
    pass


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "tollgate list --team acme --after c2"),
        ("--limit 5 --after c1 --team other", "tollgate list --team acme --limit 5 --after c2"),
        ("--errors --off", "tollgate list --team acme --errors --off --after c2"),
        ("-m 'eth_*' --method b", "tollgate list --team acme --method 'eth_*' --method b --after c2"),
    ],
)
def test_the_next_page_keeps_every_filter(given: str, expected: str) -> None:
    ctx = example.make_context("tollgate list", shlex.split(given))
    assert next_command(ctx, "c2", "acme") == expected


def test_a_list_that_belongs_to_no_team_names_none() -> None:
    ctx = example.make_context("tollgate list", [])
    assert next_command(ctx, "c 2", None) == "tollgate list --after 'c 2'"


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("30d", "2026-12-15T12:00:00+00:00"),
        ("1h30m", "2026-11-15T13:30:00+00:00"),
        ("2026-12-31", "2026-12-31T23:59:59+00:00"),
        ("2026-12-31T10:00:00Z", "2026-12-31T10:00:00+00:00"),
        ("2026-12-31T10:00:00+02:00", "2026-12-31T10:00:00+02:00"),
    ],
)
def test_an_end_is_a_duration_a_day_or_a_time(text: str, moment: str) -> None:
    found = expiry(text, NOW)
    assert found is not None
    assert found.isoformat() == moment


@pytest.mark.parametrize("text", ["", "soon", "2026-02-30", "2026-12-31T10:00:00", "999999999w", "20261231"])
def test_anything_else_is_refused_as_an_end(text: str) -> None:
    assert expiry(text, NOW) is None
