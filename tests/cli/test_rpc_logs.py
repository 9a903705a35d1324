"""`tollgate rpc logs` against a scripted server: what is requested, what is printed, and how it is followed."""

from __future__ import annotations

import csv
import datetime
import io
import json
import re
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tollgate.cli.failures import Failure, Lost, NoServer, NotAllowed
from tollgate.cli.options import _seconds_ago
from tollgate.cli.rpc_logs import AWAY, BACK, PATIENCE_SECONDS, POLL_SECONDS, duration, following
from tollgate.processes.collector import COMMIT_SECONDS

if TYPE_CHECKING:
    from tests.cli.conftest import Api, Tool

PATH = "teams/acme/logs"
LOG: dict[str, Any] = {
    "id": "ent_1",
    "time": "2026-11-15T06:44:44.250000Z",
    "request_id": "req-1",
    "team": "acme",
    "token_id": "tok_3kF9aQx72LmN0pRt",
    "token_name": "ci",
    "domain_id": None,
    "domain": None,
    "address": "192.0.2.7",
    "user_agent": "curl/8",
    "origin": None,
    "family": "eth",
    "network": "mainnet",
    "method": "eth_call",
    "status": 200,
    "outcome": "ok",
    "error_code": None,
    "request_bytes": 90,
    "response_bytes": 40,
    "duration_us": 1_234,
    "upstream": "node-1",
    "attempts": 1,
    "cache": "bypass",
    "billable": True,
    "cost_micros": 5,
    "count": 1,
    "trace": [{"upstream": "node-1", "start_us": 0, "end_us": 1_234, "verdict": "answered", "status": None}],
    "new_in_a_later_version": 1,
}
PAGE_CALL = {
    **LOG, "id": "ent_2", "token_id": None, "token_name": None, "domain_id": "dom_1", "domain": "web.example",
    "outcome": "node_error", "error_code": 3, "duration_us": 2_500_000, "cost_micros": 0,
}  # fmt: skip
REFUSALS = {
    **LOG, "id": "ent_3", "method": None, "status": 429, "outcome": "rate_limited", "error_code": -32005,
    "duration_us": 80, "billable": False, "cost_micros": 0, "count": 57,
}  # fmt: skip


def page(*items: object, after: str | None = None, newer: str | None = "n1") -> dict[str, Any]:
    return {"items": list(items), "next": after, "newer": newer}


# ---- pages


def test_columns_show_what_was_called_and_what_became_of_it(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=100", page(LOG, PAGE_CALL, REFUSALS))
    ran = acme.run("rpc", "logs", "--team", "acme")
    assert (ran.code, ran.err) == (0, "")
    at, title, *rest = "2026-11-15T06:44:44.250Z", "TIME                    ", *ran.out.splitlines()
    assert rest == [
        f"{title}  METHOD    NETWORK      STATUS                       DURATION  CALLER       COST",
        f"{at}  eth_call  eth/mainnet  200                          1.23 ms   ci           $0.000005",
        f"{at}  eth_call  eth/mainnet  200 node_error 3             2.5 s     web.example  $0.00",
        f"{at}  -         eth/mainnet  429 rate_limited -32005 x57  80 µs     ci           -",
    ]


def test_columns_are_chosen_by_name(api: Api, acme: Tool) -> None:
    for more in ([], ["--all"]):
        api.on("GET", f"{PATH}?limit={1_000 if more else 100}", page(LOG, REFUSALS))
        ran = acme.run("rpc", "logs", "--columns", "request,method,upstream,cache,address", *more)
        assert [line.split() for line in ran.out.splitlines()] == [
            ["REQUEST", "METHOD", "UPSTREAM", "CACHE", "ADDRESS"],
            ["req-1", "eth_call", "node-1", "bypass", "192.0.2.7"],
            ["req-1", "-", "node-1", "bypass", "192.0.2.7"],
        ]
    ran = acme.run("rpc", "logs", "--columns", "time,colour")
    assert (ran.code, "there is no column 'colour'. Columns: time, method," in ran.err) == (2, True)


def test_followed_lines_are_aligned(api: Api, acme: Tool) -> None:
    long = {**LOG, "method": "debug_traceBlockByNumberWithAllThereIs", "token_name": "a" * 40}
    api.on("GET", f"{PATH}?limit=1000", page(LOG, long, PAGE_CALL, REFUSALS))
    title, *lines = acme.run("rpc", "logs", "--all").out.splitlines()
    for name, first in (("NETWORK", "eth/mainnet"), ("STATUS", ("200", "429")), ("CALLER", ("ci", "aaa", "web"))):
        assert all(line[title.index(name) :].startswith(first) for line in lines)
    assert "debug_traceBlockByNumberW…  eth/mainnet" in lines[1]


def test_json_is_items_and_next_with_every_field(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=2&after=c%2F1", page(LOG, REFUSALS, after="c2"))
    ran = acme.run("rpc", "logs", "--limit", "2", "--after", "c/1", "--json")
    assert ran.json == {"items": [LOG, REFUSALS], "next": "c2"}
    assert ran.err == ""


def test_filters_are_sent_as_they_are_written(api: Api, acme: Tool) -> None:
    query = "limit=5&since=1h30m&network=eth%2Fmainnet&method=eth_call&status=429&errors=true&token=ci"
    api.on("GET", f"{PATH}?{query}", page())
    ran = acme.run(
        *("rpc", "logs", "--limit", "5", "--since", "1h30m", "--network", "eth/mainnet"),
        *("--method", "eth_call", "--status", "429", "--errors", "--token", "ci"),
    )
    assert (ran.code, ran.out, ran.err) == (0, "", "No calls match.\n")
    api.on("GET", f"{PATH}?limit=100&domain=web.example", page())
    assert acme.run("rpc", "logs", "--domain", "web.example").code == 0


def test_a_time_range_is_given_by_times_or_durations(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=100&until=2026-11-15T00%3A00%3A00Z", page())
    api.on("GET", f"{PATH}?limit=100&until=2026-11-15T05%3A30%3A00Z", page())
    for given in ("2026-11-15", "2026-11-15T06:30:00+01:00"):
        assert acme.run("rpc", "logs", "--until", given).err == "No calls match.\n"
    now = datetime.datetime(2026, 11, 16, 6, 0, 0, 1, tzinfo=datetime.UTC)
    assert _seconds_ago("2026-11-15", now) == 30 * 3600 + 1
    assert _seconds_ago("90m", now) == 5400
    assert _seconds_ago("soon", now) is None


@pytest.mark.e2e
def test_calls_of_today_fit_80_columns_without_their_date(api: Api, acme: Tool) -> None:
    now = datetime.datetime.now(datetime.UTC)
    today = {**LOG, "time": f"{now:%Y-%m-%d}T00:00:01.250000Z", "status": 403, "outcome": "method_not_allowed"}
    api.on("GET", f"{PATH}?limit=100", page({**today, "error_code": -32601}))
    with acme.terminal("rpc", "logs", "--team", "acme", columns=80) as terminal:
        assert terminal.end() == 0
    assert re.search(r"\n00:00:01.250Z +\S+ +eth/mainnet +\S*403 method_not_allowed -32601", terminal.seen)
    assert "DURATION" in terminal.seen


def test_empty_result_prints_a_message(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=100", page())
    output = acme.run("rpc", "logs").err
    assert output == f"No calls yet. Send one to {api.url}/x/<family>/<network>, with a token of the team.\n"


def test_a_page_that_the_server_ended_early_is_continued(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=2&errors=true", page(after="c2"))
    api.on("GET", f"{PATH}?limit=2&after=c2&errors=true", page(LOG, after="c3", newer="n2"))
    api.on("GET", f"{PATH}?limit=1&after=c3&errors=true", page(REFUSALS, after="c4"))
    ran = acme.run("rpc", "logs", "--errors", "--limit", "2", "--json")
    assert ran.json == {"items": [LOG, REFUSALS], "next": "c4"}


def test_a_page_whose_cursor_does_not_advance_is_not_requested_again(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=100&errors=true", page(after="c2"))
    api.on("GET", f"{PATH}?limit=100&after=c2&errors=true", page(after="c2"))
    output = acme.run("rpc", "logs", "--errors").err
    assert output == "None of the newest calls match. Continue with --after.\n"


def test_all_that_fits_is_exported_line_by_line(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=1000&request_id=req-1", page(LOG, after="c2"))
    api.on("GET", f"{PATH}?limit=1000&after=c2&request_id=req-1", page(after="c3"))
    api.on("GET", f"{PATH}?limit=1000&after=c3&request_id=req-1", page(REFUSALS))
    ran = acme.run("rpc", "logs", "--all", "--request-id", "req-1", "--json")
    assert [json.loads(line) for line in ran.out.splitlines()] == [LOG, REFUSALS]
    assert acme.run("rpc", "logs", "--all", "--follow").code == 2


def test_csv_has_a_row_for_each_call_and_no_formula(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=1000", page(LOG, after="c2"))
    api.on(
        "GET", f"{PATH}?limit=1000&after=c2", page({**REFUSALS, "method": "=1+1"}, {**LOG, "method": "\uff1d1+1"})
    )
    rows = list(csv.DictReader(io.StringIO(acme.run("rpc", "logs", "--csv").out)))
    assert [row["method"] for row in rows] == [LOG["method"], "'=1+1", "'\uff1d1+1"]
    assert list(rows[0]) == [name for name in LOG if name != "trace"], "a cell has no room for a list"
    assert rows[0]["attempts"] == "1"


@pytest.mark.e2e
def test_a_terminal_shows_the_command_for_the_next_page_with_its_filters(api: Api, acme: Tool) -> None:
    api.on(
        "GET", f"{PATH}?limit=2&since=1h&status=200&errors=true&token=my+token", page(LOG, LOG, after="old_x-_")
    )
    with acme.terminal(
        *("rpc", "logs", "--team", "acme", "--limit", "2", "--since", "1h", "--status", "200", "--errors"),
        *("--token", "my token", "--columns", "time,method"),
        columns=160,
    ) as terminal:
        assert terminal.end() == 0
    assert "2026-11-15T06:44:44.250Z" in terminal.seen
    command = "tollgate rpc logs --team acme --limit 2 --since 1h --status 200 --errors --token 'my token'"
    assert f"There is more: {command} --columns time,method --after old_x-_\n" in terminal.seen


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--limit", "0"), "1<=x<=1000"),
        (("--limit", "1001"), "1<=x<=1000"),
        (("--since", "yesterday"), "neither a duration (30m, 24h, 7d) nor a time (2026-11-15 or "),
        (("--since", ""), "neither a duration"),
        (("--since", "2999-01-01"), "is not in the past"),
        (("--until", "tomorrow"), "neither a time"),
        (("--csv", "--follow"), "--csv print older calls, --follow prints new ones"),
        (("--status", "99"), "100<=x<=599"),
        (("--status", "ok"), "not a valid integer"),
        (("--network", "mainnet"), "family/network, such as eth/mainnet"),
        (("--token", "ci", "--domain", "web.example"), "one of --token and --domain"),
        (("--follow", "--after", "c1"), "--after prints older calls, --follow prints new ones"),
    ],
)
def test_wrong_usage_is_found_before_anything_is_requested(
    acme: Tool, arguments: tuple[str, ...], words: str
) -> None:
    ran = acme.run("rpc", "logs", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


@pytest.mark.parametrize(
    ("status", "reason", "code"),
    [(400, "invalid_request", 1), (403, "no_such_team", 5), (404, "not_found", 3), (503, "store_unavailable", 1)],
)
@pytest.mark.parametrize("more", [(), ("--follow",)])
def test_refusals_of_the_server_have_their_exit_codes(
    api: Api, acme: Tool, status: int, reason: str, code: int, more: tuple[str, ...]
) -> None:
    api.problem("GET", f"{PATH}?limit=100&token=x", status, reason, "What to do.")
    ran = acme.run("rpc", "logs", "--token", "x", *more)
    assert (ran.code, ran.out) == (code, "")
    assert "What to do." in ran.err


def test_without_a_login_the_code_is_4(tool: Tool) -> None:
    assert tool.run("rpc", "logs", "--team", "acme").code == 4


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "0 µs"),
        (999, "999 µs"),
        (1_000, "1 ms"),
        (12_345, "12.3 ms"),
        (999_499, "999 ms"),
        (999_600, "1 s"),
        (1_234_567, "1.23 s"),
        (61_000_000, "61 s"),
        (1_000_000_000, "1000 s"),
    ],
)
def test_durations_read_well(micros: int, text: str) -> None:
    assert duration(micros) == text


# ---- following: what is decided


def test_a_call_is_shown_within_a_second_and_a_half_of_its_answer() -> None:
    assert COMMIT_SECONDS + POLL_SECONDS <= 1.3, "the rest is for committing and polling"


def test_a_server_that_answers_is_called_now_and_then_and_at_once_when_there_is_more() -> None:
    steps = following()
    assert next(steps) == (POLL_SECONDS, "")
    assert steps.send((None, False, 1.0)) == (POLL_SECONDS, "")
    assert steps.send((None, True, 2.0)) == (0.0, "")
    assert steps.send((None, True, 2.1)) == (0.0, "")
    assert steps.send((None, False, 2.2)) == (POLL_SECONDS, "")


def test_an_outage_is_reported_once_and_so_is_its_end() -> None:
    steps = following()
    next(steps)
    failures: list[Failure] = [
        NoServer("no"),
        Lost("lost"),
        Failure("503", reason="unavailable"),
        Failure("503", reason="store_unavailable"),
    ]
    steps_taken = [steps.send((failure, False, float(at))) for at, failure in enumerate(failures)]
    assert [words for _, words in steps_taken] == [AWAY, "", "", ""]
    assert [pause for pause, _ in steps_taken] == [POLL_SECONDS * 1.5**number for number in range(1, 5)]
    assert steps.send((None, False, 10.0)) == (POLL_SECONDS, BACK)
    assert steps.send((NoServer("no"), False, 11.0)) == (1.5 * POLL_SECONDS, AWAY)


def test_retries_end_at_the_deadline() -> None:
    steps = following()
    next(steps)
    now = 0.0
    while now < PATIENCE_SECONDS:
        now += steps.send((NoServer("away"), False, now))[0]
    assert now < PATIENCE_SECONDS + 10
    with pytest.raises(NoServer, match="away"):
        steps.send((NoServer("away"), False, now))


@pytest.mark.parametrize("failure", [NotAllowed("no"), Failure("broken", reason="internal_error")])
def test_permanent_error_ends_following(failure: Failure) -> None:
    steps = following()
    next(steps)
    with pytest.raises(type(failure)):
        steps.send((failure, False, 0.0))


# ---- following: what is done


def entry(number: int) -> dict[str, Any]:
    return {**LOG, "id": f"ent_{number}", "request_id": f"req-{number}"}


def interrupted(started: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Do what Ctrl-C does; give the exit code and what was printed for the person."""
    started.send_signal(signal.SIGINT)
    _, output = started.communicate(timeout=30)
    return started.returncode, output.decode()


def lines(started: subprocess.Popen[bytes], count: int) -> list[Any]:
    assert started.stdout is not None
    return [json.loads(started.stdout.readline()) for _ in range(count)]


@pytest.mark.e2e
def test_followed_calls_are_json_lines_oldest_first_without_gap_or_double(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=2&since=1h&errors=true", page(entry(2), entry(1), after="c", newer="n1"))
    api.on("GET", f"{PATH}?limit=1000&newer=n1&errors=true", page(newer="n1"))
    api.on("GET", f"{PATH}?limit=1000&newer=n1&errors=true", page(entry(3), entry(4), newer="n2"))
    # The server is being restarted: a broken connection, then a worker whose control plane is unavailable.
    where = f"{PATH}?limit=1000&newer=n2&errors=true"
    api.on("GET", where, drop=True)
    api.on("GET", where, {"status": 503, "detail": "The control plane is starting."}, status=503)
    api.on("GET", where, page(entry(5), newer="n3"))
    requested, ended = threading.Event(), threading.Event()
    last = f"{PATH}?limit=1000&newer=n3&errors=true"

    def asked_for() -> None:
        requested.set()
        ended.wait(30)

    api.on("GET", last, page(newer="n3"), before=asked_for)
    with acme.started("rpc", "logs", "-f", "--limit", "2", "--since", "1h", "--errors", "--json") as started:
        assert lines(started, 5) == [entry(number) for number in range(1, 6)]
        assert requested.wait(30)
        code, output = interrupted(started)
        ended.set()
    assert code == 130
    assert output.split("\n") == [AWAY, BACK, "", ""]


def test_a_person_sees_lines_under_titles(api: Api, acme: Tool) -> None:
    hostile = {**LOG, "token_name": "a\x1b[2Jb"}
    api.on("GET", f"{PATH}?limit=100", page(REFUSALS, LOG))
    api.problem("GET", f"{PATH}?limit=1000&newer=n1", 403, "no_such_team", "You were removed.")
    ran = acme.run("rpc", "logs", "--follow")
    assert (ran.code, ran.err) == (5, "tollgate: You were removed.\n")
    title, first, second = ran.out.splitlines()
    assert title.split() == ["TIME", "METHOD", "NETWORK", "STATUS", "DURATION", "CALLER", "COST"]
    assert first.split() == [
        *("2026-11-15T06:44:44.250Z", "eth_call", "eth/mainnet", "200", "1.23", "ms", "ci", "$0.000005")
    ]
    assert "429 rate_limited -32005 x57" in second
    assert title.index("STATUS") == first.index("200") == second.index("429 ")
    api.on("GET", f"{PATH}?limit=100", page(hostile))
    api.problem("GET", f"{PATH}?limit=1000&newer=n1", 403, "no_such_team", "x")
    assert "a\\x1b[2Jb" in acme.run("rpc", "logs", "--follow").out


def test_a_full_page_is_continued_at_once(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=100", page())
    api.on("GET", f"{PATH}?limit=1000&newer=n1", page(*map(entry, range(1_000)), newer="n2"))
    api.on("GET", f"{PATH}?limit=1000&newer=n2", page(entry(1_000), newer="n3"))
    api.problem("GET", f"{PATH}?limit=1000&newer=n3", 401, "login_expired", "x")
    acme.log_in("tgp_one", kind="personal")
    ran = acme.run("rpc", "logs", "--follow", "--json")
    assert [json.loads(line)["id"] for line in ran.out.splitlines()] == [f"ent_{n}" for n in range(1_001)]
    assert ran.code == 4


def test_a_server_that_cannot_be_followed_reports_it(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}?limit=100", {"items": [], "next": None})
    ran = acme.run("rpc", "logs", "--follow", "--json")
    assert ran.code == 1
    assert "older than the tool" in ran.err
