"""`tollgate rpc logs show`: one call, and its attempts as a waterfall."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cli.test_rpc_logs import LOG, PATH

if TYPE_CHECKING:
    from tests.cli.conftest import Api, Tool

HEDGED = {
    **LOG, "duration_us": 1_318_000, "upstream": "provider-b", "attempts": 3,
    "trace": [
        {"upstream": "own-node", "start_us": 0, "end_us": 804_000, "verdict": "status", "status": 503},
        {"upstream": "provider-a", "start_us": 806_000, "end_us": 1_316_000, "verdict": "hedge_lost"},
        {"upstream": "provider-b", "start_us": 1_106_000, "end_us": 1_312_000, "verdict": "later_word"},
    ],
}  # fmt: skip


def test_call_is_shown_with_its_attempts_in_plain_columns(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}/ent_1", HEDGED)
    ran = acme.run("rpc", "logs", "show", "ent_1", "--team", "acme")
    assert (ran.code, ran.err) == (0, "")
    fields, attempts = ran.out.split("\n\n")
    assert fields.splitlines() == [
        "id        ent_1",
        "time      2026-11-15T06:44:44.250Z",
        "request   req-1",
        "network   eth/mainnet",
        "method    eth_call",
        "status    200",
        "caller    ci",
        "address   192.0.2.7",
        "cache     bypass",
        "cost      $0.000005",
        "duration  1.32 s",
        "upstream  provider-b",
        "bytes     90 in, 40 out",
        "agent     curl/8",
        "origin    -",
        "attempts  3",
    ]
    assert attempts.splitlines() == [
        "UPSTREAM    START   END     VERDICT",
        "own-node    0 µs    804 ms  HTTP 503",
        "provider-a  806 ms  1.32 s  hedge lost",
        "provider-b  1.11 s  1.31 s  later word",
    ]


def test_a_terminal_gets_lanes_and_a_narrow_one_none(api: Api, acme: Tool) -> None:
    for columns, drawn in ((100, True), (50, False)):
        api.on("GET", f"{PATH}/ent_1", HEDGED)
        with acme.terminal("rpc", "logs", "show", "ent_1", columns=columns, env={"NO_COLOR": "1"}) as terminal:
            assert terminal.end() == 0
        lanes = [line for line in terminal.seen.splitlines() if line.startswith(("own-", "provider-"))]
        places = [(line.find("█") - len("provider-a  "), line.count("█")) for line in lanes]
        assert places == ([(0, 20), (19, 12), (26, 5)] if drawn else [(-13, 0)] * 3)


def test_json_is_the_object_of_the_api(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}/ent_1", HEDGED)
    assert acme.run("rpc", "logs", "show", "ent_1", "--json").json == HEDGED


def test_call_that_reached_no_upstream_has_no_waterfall(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}/ent_1", {**LOG, "upstream": None, "attempts": 0, "trace": []})
    ran = acme.run("rpc", "logs", "show", "ent_1")
    assert ran.out.splitlines()[-1] == "attempts  0"


def test_server_that_sends_no_trace_shows_the_number_of_attempts(api: Api, acme: Tool) -> None:
    api.on("GET", f"{PATH}/ent_1", {name: value for name, value in LOG.items() if name != "trace"})
    ran = acme.run("rpc", "logs", "show", "ent_1")
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "attempts  1")


def test_unknown_entry_exits_3(api: Api, acme: Tool) -> None:
    api.problem("GET", f"{PATH}/ent_9", 404, "not_found", "There is no entry ent_9.")
    ran = acme.run("rpc", "logs", "show", "ent_9")
    assert (ran.code, ran.out) == (3, "")
    assert "There is no entry ent_9." in ran.err


def test_filters_of_the_list_do_not_go_with_show(acme: Tool) -> None:
    ran = acme.run("rpc", "logs", "--errors", "show", "ent_1")
    assert ran.code == 2
    assert "--errors filters the list; it does not go with 'show'." in ran.err
