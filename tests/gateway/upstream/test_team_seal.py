"""Filter ids and continuation tokens are of use to the team that was given them only."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tollgate.core.shapes import Reply, WrittenCall
from tollgate.gateway.upstream.sticky import EVENTS, TeamSeal

SEAL = TeamSeal(b"p" * 32)
NEW, CHANGES = "eth_newFilter", "eth_getFilterChanges"


def raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


def given_out(method: str, result: Any, team: str = "team_a") -> Any:
    return json.loads(bytes(SEAL.closed(method, Reply(raw(result)), team).result))


def understood(method: str, params: Any, team: str = "team_a", call_id: Raw | None = None) -> Any:
    written = (
        {name: raw(each) for name, each in params.items()} if isinstance(params, dict) else list(map(raw, params))
    )
    opened = SEAL.opened(WrittenCall(method, written, call_id or raw(1)), team).params
    assert opened is not None
    if isinstance(opened, dict):
        return {name: json.loads(bytes(each)) for name, each in opened.items()}
    return [json.loads(bytes(each)) for each in opened]


node_ids = (
    st.integers(0, 2**160).map(hex) | st.text(max_size=40) | st.sampled_from(["0x", "0x00f", "0XAB", "0xAb"])
)


@given(node_ids, st.sampled_from(["team_a", "team_b", ""]))
def test_filter_of_a_team_is_the_same_filter_when_it_comes_back(node_id: str, team: str) -> None:
    sealed = given_out(NEW, node_id, team)
    assert understood(CHANGES, [sealed, 1], team) == [node_id, 1]
    assert understood(CHANGES, [sealed.upper().replace("0X", "0x")], team) == [node_id]
    assert int(sealed, 16) > 0
    assert hex(int(sealed, 16)) == sealed, "a client may hold it as a number"


def test_filter_id_has_one_size_for_all_ids_of_128_bits() -> None:
    """The id of geth is 128 random bits, to which the upstream's slot is added; the tag adds 128 more."""
    assert {len(given_out(NEW, f"0x{number:032x}00")) for number in (1, 2**64, 2**128 - 1)} == {
        2 + 1 + 2 * (16 + 18)
    }


@given(node_ids)
def test_filter_of_another_team_is_none_that_a_node_has_made(node_id: str) -> None:
    sealed = given_out(NEW, node_id, "team_a")
    for params in ([sealed], {"id": sealed}):
        (seen,) = (
            understood(CHANGES, params, "team_b")
            if isinstance(params, list)
            else understood(CHANGES, params, "team_b").values()
        )
        assert seen != node_id
        assert seen != sealed
        assert seen.startswith("0x7f")
        assert len(seen) == 28


@pytest.mark.parametrize(
    "made_up", ["0x1", "0x100", "0x1" + "ab" * 30, "", "0x", 1, None, ["0x1"], {"a": "0x1"}, "x" * 999]
)
def test_made_up_filter_never_reaches_a_node_as_it_is(made_up: Any) -> None:
    (seen,) = understood(CHANGES, [made_up])
    assert seen.startswith("0x7f")


@given(st.text(), st.booleans())
def test_continuation_token_of_a_team(token: str, by_name: bool) -> None:
    result = {"events": [1], "continuation_token": token}
    sealed = given_out(EVENTS, result)
    assert sealed["events"] == [1]
    given_filter = {"chunk_size": 5, "continuation_token": sealed["continuation_token"]}
    params: Any = {"filter": given_filter, "more": 1} if by_name else [given_filter, 1]

    def seen(team: str) -> str:
        sent_on = understood(EVENTS, params, team)
        inside, more = sent_on.values() if by_name else sent_on
        assert more == 1
        assert inside["chunk_size"] == 5
        return str(inside["continuation_token"])

    assert seen("team_a") == token
    assert seen("team_b").startswith("unknown-")
    assert token not in ("", sealed["continuation_token"]) or token == ""


def test_token_under_an_escaped_name_is_looked_at_too() -> None:
    written = Raw(rb'{"continuation\u005ftoken":"tg0.5-1","chunk_size":1}')
    opened = SEAL.opened(WrittenCall(EVENTS, [written], raw(1)), "team_a").params
    assert isinstance(opened, list)
    assert json.loads(bytes(opened[0]))["continuation_token"].startswith("unknown-")


def test_token_of_a_filter_is_no_continuation_token_and_the_other_way() -> None:
    filter_id = given_out(NEW, "tg0.1")
    (seen,) = understood(EVENTS, [{"continuation_token": filter_id[3:]}])
    assert seen["continuation_token"].startswith("unknown-")


@pytest.mark.parametrize(
    ("method", "params"),
    [
        (EVENTS, [{"chunk_size": 1}]),
        (EVENTS, [{"continuation_token": None}]),
        (EVENTS, {"x": 1}),
        (EVENTS, ["x"]),
        (NEW, [{}]),
    ],
)
def test_what_has_no_token_is_left_alone(method: str, params: Any) -> None:
    assert understood(method, params) == params


def test_errors_and_ids_stay_as_they_are() -> None:
    failed = Reply(error=raw({"code": 1}))
    assert SEAL.closed(NEW, failed, "team_a") is failed
    for call_id in (Raw(b'"a\\u0062"'), Raw(b"-0"), None):
        opened = SEAL.opened(WrittenCall(CHANGES, [raw("0x1")], call_id), "team_a")
        assert opened.id == call_id
