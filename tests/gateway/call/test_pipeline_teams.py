"""What nodes give to a team is of use to that team alone; what is billed of its calls, and what it may call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.gateway.callers import (
    OTHER_TEAM,
    TEAM,
    TOKEN,
    call,
    digest,
    domain_grant,
    reason,
    request,
    token_grant,
    with_token,
)
from tests.gateway.calls import answer
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import http

from tollgate.core import secrets
from tollgate.core.methods import Policy
from tollgate.gateway.call import pipeline as pipeline_module

OTHER = secrets.new_token()
NEW, CHANGES = "eth_newFilter", "eth_getFilterChanges"


class Filters:
    """A node that makes one filter, and knows it again."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def __call__(self, body: bytes) -> bytes:
        sent = json.loads(body)
        replies = [self._reply(each) for each in (sent if isinstance(sent, list) else [sent])]
        return http(json.dumps(replies if isinstance(sent, list) else replies[0]).encode())

    def _reply(self, each: Any) -> dict[str, Any]:
        self.calls.append((each["method"], each["params"]))
        known = each["method"] != CHANGES or each["params"] == ["0x1f"]
        result = {NEW: "0x1f", CHANGES: ["a change"]}.get(each["method"], "0x5")
        outcome = {"result": result} if known else {"error": {"code": -32000, "message": "filter not found"}}
        return {"jsonrpc": "2.0", "id": each["id"], **outcome}


async def reply_to(gateway: FakeGateway, body: Any, token: str = TOKEN) -> Any:
    return json.loads((await answer(gateway, with_token(json.dumps(body).encode(), token))).body)


async def two_teams(node: Filters) -> FakeGateway:
    gateway = await open_gateway(node=node)
    gateway.store.tokens[digest(OTHER)] = token_grant(OTHER_TEAM)
    return gateway


@pytest.mark.parametrize("many", [False, True], ids=["call", "batch"])
async def test_filter_is_of_use_to_the_team_that_made_it_and_to_no_other(many: bool) -> None:
    node = Filters()
    gateway = await two_teams(node)

    async def send(method: str, params: list[Any], token: str) -> Any:
        if not many:
            return await reply_to(gateway, call(1, method, params=params), token)
        return (await reply_to(gateway, [call(0, "eth_chainId"), call(1, method, params=params)], token))[1]

    made = (await send(NEW, [{}], TOKEN))["result"]
    assert made != "0x1f", "the node's id is not disclosed"
    assert (await send(CHANGES, [made], TOKEN))["result"] == ["a change"]
    assert "error" in await send(CHANGES, [made], OTHER)
    assert "error" in await send(CHANGES, ["0x1f"], OTHER), "not by guessing either"
    assert [params for method, params in node.calls if method == CHANGES].count(["0x1f"]) == 1


async def test_other_results_are_not_sealed() -> None:
    gateway = await two_teams(Filters())
    assert (await reply_to(gateway, call(1, "eth_chainId")))["result"] == "0x5"
    both = await reply_to(gateway, [call(1, "eth_chainId"), call(2, "eth_gasPrice")])
    assert [each["result"] for each in both] == ["0x5", "0x5"]


# --- What is billed ------------------------------------------------------------------------------------------

WIDE = {"fromBlock": "0x1", "toBlock": "0x40"}


def narrow(body: bytes) -> bytes:
    """A node that gives logs of 16 blocks at most."""
    sent = json.loads(body)

    def reply(each: Any) -> dict[str, Any]:
        if each["method"] == "eth_getLogs":
            wanted = each["params"][0]
            if int(wanted["toBlock"], 16) - int(wanted["fromBlock"], 16) >= 16:
                return {"id": each["id"], "error": {"code": -32005, "message": "query exceeds max block range"}}
            return {"id": each["id"], "result": []}
        return {"id": each["id"], "result": "0x5"}

    return http(json.dumps([reply(each) for each in sent] if isinstance(sent, list) else reply(sent)).encode())


@pytest.mark.parametrize("many", [False, True], ids=["call", "batch"])
@pytest.mark.parametrize("bills", [False, True])
async def test_calls_that_one_call_needs_are_written_down_where_they_are_billed(many: bool, bills: bool) -> None:
    gateway = await open_gateway(node=narrow)
    gateway.store.tokens[digest(TOKEN)] = token_grant(requests_per_second=100)
    gateway.status.publish(1_000, 900, changed=True)
    gateway.pipeline.change(100, 30.0, bills_upstream_calls=bills)
    logs = call(1, "eth_getLogs", params=[WIDE])
    sent = with_token(json.dumps([logs, call(2)] if many else logs).encode())
    got = json.loads((await answer(gateway, sent)).body)
    assert (got[0] if many else got)["result"] == []
    notes = [note for note in sent.calls if note.method == "eth_getLogs"]
    assert len(notes) > 4 if bills else len(notes) == 1
    assert sum(cost for _, cost in gateway.meters.taken) > 4, "they count against limits in any case"
    assert all(note.outcome == "ok" for note in notes)
    assert notes[0].response_bytes > 0
    assert [note.response_bytes for note in notes[1:]] == [0] * (len(notes) - 1), "the answer has its bytes once"
    if many:
        assert all(note.attempts == 0 for note in notes[1:])
        assert len([note for note in sent.calls if note.method != "eth_getLogs"]) == 1


async def test_upstream_calls_are_billed_unless_the_operator_decides_otherwise() -> None:
    gateway = await open_gateway()
    found = [gateway.pipeline.bills_upstream_calls]
    gateway.pipeline.change(100, 30.0, bills_upstream_calls=False)
    found.append(gateway.pipeline.bills_upstream_calls)
    gateway.pipeline.change(100, 30.0)
    found.append(gateway.pipeline.bills_upstream_calls)
    assert found == [True, False, True]


# --- What may be called --------------------------------------------------------------------------------------


async def test_methods_that_callers_invent_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_module, "_MAX_METHODS", 4)
    gateway = FakeGateway()
    for number in range(10):
        assert gateway.pipeline._network_policy(gateway.network, f"eth_{number}", from_domain=False) is None
        assert len(gateway.pipeline._allowed[gateway.network.path, False]) <= 4
    long = "eth_" + "x" * 200
    assert gateway.pipeline._network_policy(gateway.network, long, from_domain=False) is None
    assert gateway.pipeline._allowed[gateway.network.path, False] == {"eth_8", "eth_9"}


async def test_token_for_some_contracts_calls_no_unknown_method() -> None:
    gateway = await open_gateway()
    gateway.store.tokens[digest(TOKEN)] = token_grant(contracts=("0x" + "ab" * 20,))
    assert "result" in await reply_to(gateway, call(1, "eth_chainId"))
    assert reason(await reply_to(gateway, call(1, "foo_bar"))) == "method_not_allowed"
    assert (
        reason(await reply_to(gateway, call(1, "eth_call", params=[{"to": "0x" + "cd" * 20}])))
        == "method_not_allowed"
    )
    assert "result" in await reply_to(gateway, call(1, "eth_call", params=[{"to": "0x" + "ab" * 20}]))


async def test_what_domains_may_not_call_is_refused_to_them_after_a_token_has_called_it() -> None:
    gateway = await open_gateway(policy=Policy(allow=("*",)))
    gateway.store.grants["example.com"] = domain_grant(TEAM)
    for method in ("debug_traceCall", "foo_bar"):
        body = json.dumps(call(1, method, params=[])).encode()
        for _ in range(2):
            assert "result" in json.loads((await answer(gateway, with_token(body))).body)
            page = await answer(gateway, request(body, origin="https://example.com"))
            assert reason(json.loads(page.body)) == "method_not_allowed"


async def test_batch_of_a_domain_is_checked_after_a_token_has_called_the_same() -> None:
    gateway = await open_gateway()
    gateway.store.grants["example.com"] = domain_grant(TEAM)
    body = json.dumps([call(1, "eth_chainId"), call(2, "foo_bar"), call(3, "debug_traceCall")]).encode()
    for _ in range(2):
        both = [with_token(body), request(body, origin="https://example.com")]
        answers = [json.loads((await answer(gateway, each)).body) for each in both]
        assert [["error" in each for each in batch] for batch in answers] == [[False] * 3, [False, True, True]]


async def test_family_without_a_catalogue_is_for_tokens() -> None:
    gateway = await open_gateway(family="foo")
    gateway.store.grants["example.com"] = domain_grant(TEAM)
    body = json.dumps(call(1, "eth_chainId")).encode()
    assert "result" in json.loads((await answer(gateway, with_token(body))).body)
    page = json.loads((await answer(gateway, request(body, origin="https://example.com"))).body)
    assert "The family foo has no catalogue of methods, so it needs a token" in page["error"]["message"]
    gateway.store.tokens[digest(TOKEN)] = token_grant(contracts=("0x" + "ab" * 20,))
