"""Logs as files."""

import csv
import io
import json
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from tests.control.api.caller import Api, reason
from tests.store.account_rows import Books, calls

from tollgate.api.logs import LogQuery
from tollgate.control.api import exports

FORMULA = '=HYPERLINK("https://evil.example")'


def called(api: Api, count: int = 3) -> None:
    books = Books(api.harness.folder)
    books.commit(*(calls(1, method=FORMULA) for _ in range(count)))
    books.close()


def test_csv_cells_are_escaped_against_formula_injection(api: Api) -> None:
    called(api)
    answer = api.request("GET", "/teams/acme/logs/export/csv")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="acme-logs.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["method"] for row in rows] == [f"'{FORMULA}"] * 3
    assert rows[0]["attempts"].isdigit()
    assert "trace" not in rows[0]


def test_lines_are_the_entries_of_the_list(api: Api) -> None:
    called(api)
    answer = api.request("GET", "/teams/acme/logs/export/jsonl")
    listed = api.get("/teams/acme/logs")["items"]
    assert list(map(json.loads, answer.text.splitlines())) == listed
    assert "trace" in listed[0]


def test_one_entry_is_shown_by_its_id_and_no_other(api: Api) -> None:
    called(api)
    item = api.get("/teams/acme/logs")["items"][1]
    assert api.get(f"/teams/acme/logs/{item['id']}") == item
    assert reason(api.request("GET", "/teams/acme/logs/ent_x")) == (404, "not_found")


def test_other_forms_are_refused(api: Api) -> None:
    assert reason(api.request("GET", "/teams/acme/logs/export/xls")) == (400, "invalid_request")


async def test_search_that_finds_nothing_for_long_shows_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies close a response that is silent for too long."""
    pages: list[Any] = [SimpleNamespace(team=SimpleNamespace(id="t", name="acme"), rows=[], next="n")] * 3
    pages.append(SimpleNamespace(team=pages[0].team, rows=[], next=None))

    async def page(*_asked: object) -> Any:
        return pages.pop(0)

    async def pieces(quiet: float) -> list[bytes]:
        monkeypatch.setattr(exports, "QUIET_SECONDS", quiet)
        logs, query = SimpleNamespace(page=page), LogQuery()
        made = exports._pieces(logs, None, await page(), query, "jsonl", nullcontext())  # type: ignore[arg-type]
        return [each async for each in made]

    assert await pieces(-1.0) == [b"\n"] * 4
    pages += [SimpleNamespace(team=SimpleNamespace(id="t", name="acme"), rows=[], next=None)]
    assert await pieces(60.0) == []
