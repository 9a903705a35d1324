"""Logs as files."""

import csv
import io
import json

from tests.control.api.caller import Api, reason
from tests.store.account_rows import Books, calls

FORMULA = '=HYPERLINK("https://evil.example")'


def called(api: Api, count: int = 3) -> None:
    books = Books(api.house.folder)
    books.commit(*(calls(1, method=FORMULA) for _ in range(count)))
    books.close()


def test_spreadsheet_calculates_nothing(api: Api) -> None:
    called(api)
    answer = api.ask("GET", "/teams/acme/logs/export/csv")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="acme-logs.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["method"] for row in rows] == [f"'{FORMULA}"] * 3


def test_lines_are_the_entries_of_the_list(api: Api) -> None:
    called(api)
    answer = api.ask("GET", "/teams/acme/logs/export/jsonl")
    listed = api.get("/teams/acme/logs")["items"]
    assert [line["id"] for line in map(json.loads, answer.text.splitlines())] == [item["id"] for item in listed]


def test_one_entry_is_shown_by_its_id_and_no_other(api: Api) -> None:
    called(api)
    item = api.get("/teams/acme/logs")["items"][1]
    assert api.get(f"/teams/acme/logs/{item['id']}") == item
    assert reason(api.ask("GET", "/teams/acme/logs/ent_x")) == (404, "not_found")


def test_other_forms_are_refused(api: Api) -> None:
    assert reason(api.ask("GET", "/teams/acme/logs/export/xls")) == (400, "invalid_request")
