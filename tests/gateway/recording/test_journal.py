"""What is written down of each request, and what is not."""

import json
from typing import Any

import pytest
from tests.gateway.callers import NOTIFICATION, TOKEN, call, digest, sent, token_grant
from tests.gateway.calls import answers_to, known, outcomes, recorded, tries
from tests.gateway.fake_gateway import FakeGateway, open_gateway
from tests.gateway.fake_node import echo, http
from tests.gateway.fakes import run_pending
from tests.gateway.raw_http import Answers, answer_upstream, hello, post, responses

from tollgate.core import secrets
from tollgate.core.entries import MAX_CALLS, CallEntry, Entry
from tollgate.core.models import Team
from tollgate.core.pricing import OwnPrice
from tollgate.gateway.recording.journal import SINGLE_REFUSALS, outcome_of
from tollgate.settings import model

# --- What is written ---------------------------------------------------------------------------------------


async def test_single_call_is_one_record_with_everything_that_a_log_shows() -> None:
    def node(body: bytes) -> bytes:
        worker_clock[0].advance(0.25)
        return echo(body)

    worker_clock: list[Any] = []
    gateway = await open_gateway(node=node)
    worker_clock.append(gateway.clock)
    request = sent(call(1), "x-request-id: mine-1", "user-agent: curl/8", "origin: https://app.example.com")
    transport = gateway.connect(hello)
    transport.deliver(request)
    await run_pending(40)
    ((_, _, body),) = Answers(transport.take()).read
    (entry,) = gateway.sink.written
    assert entry == Entry(
        at=gateway.wall.now,
        request_id=b"mine-1",
        team_id="team_1",
        source_id="tok_1",
        source_name="ci",
        network="eth/mainnet",
        status=200,
        calls=(CallEntry("eth_chainId", "ok", None, len(body)),),
        request_bytes=len(json.dumps(call(1))),
        duration_micros=250_000,
        upstream="up0",
        attempts=1,
        address="192.0.2.1",
        agent=b"curl/8",
        origin=b"https://app.example.com",
    )


async def test_spending_cap_of_the_team_is_written_as_it_was_when_the_call_was_admitted(
    gateway: FakeGateway,
) -> None:
    gateway.store.tokens[digest(TOKEN)] = token_grant(Team("team_1", "acme", spending_cap=7_000_000))
    (entry,) = await recorded(gateway, sent(call(1)))
    assert entry.cap == 7_000_000


async def test_price_of_the_team_and_the_lower_of_its_caps_are_written(gateway: FakeGateway) -> None:
    team = Team("team_1", "acme", spending_cap=7, operator_cap=5, micros_per_million=9)
    gateway.store.tokens[digest(TOKEN)] = token_grant(team)
    (entry,) = await recorded(gateway, sent(call(1)))
    assert (entry.cap, entry.price) == (5, OwnPrice(None, 9))


async def test_call_of_a_whitelisted_domain_is_written_for_its_entry(gateway: FakeGateway) -> None:
    (entry,) = await recorded(gateway, sent(call(1), "origin: https://app.example.com", token=None))
    assert (entry.team_id, entry.source_id, entry.source_name) == ("team_1", "dom_1", "example.com")
    assert entry.origin == b"https://app.example.com"


async def test_error_of_a_node_is_written_with_its_code() -> None:
    def node(_: bytes) -> bytes:
        return http(b'{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"reverted"}}')

    gateway = await open_gateway(node=node)
    (entry,) = await recorded(gateway, sent(call(1, "eth_call")))
    assert (entry.status, outcomes(entry)) == (200, [("eth_call", "node_error", -32000)])


async def test_batch_is_one_record_with_what_became_of_each_call() -> None:
    def node(body: bytes) -> bytes:
        replies: list[dict[str, object]] = [
            {"jsonrpc": "2.0", "id": each["id"], "result": "0x1"}
            if each["method"] == "eth_call"
            else {"jsonrpc": "2.0", "id": each["id"], "error": {"code": 3, "message": "no"}}
            for each in json.loads(body)
        ]
        return http(json.dumps(replies).encode())

    gateway = await open_gateway(node=node)
    batch = [
        call(1, "eth_call"),
        call(2, "admin_peers"),
        call(3),
        NOTIFICATION,
        {"id": 4},
        call(5, "eth_call"),
    ]
    (entry,) = await recorded(gateway, sent(batch))
    assert entry.status == 200
    assert outcomes(entry) == [
        ("eth_call", "ok", None),
        ("admin_peers", "method_not_allowed", -32601),
        ("eth_chainId", "node_error", 3),
        ("eth_call", "ok", None),
        ("", "invalid_request", -32600),
        ("eth_call", "ok", None),
    ]
    assert [bool(each.response_bytes) for each in entry.calls] == [True, True, True, False, True, True]
    assert [each.attempts for each in entry.calls] == [1, 0, 1, 1, 0, 1]
    assert [each.upstream for each in entry.calls] == ["up0", "", "up0", "up0", "", "up0"]


async def test_each_call_of_a_batch_has_the_bytes_of_its_own_answer(gateway: FakeGateway) -> None:
    await answers_to(gateway, sent([call(1), call(2)]))  # its methods are known from now on
    transport = gateway.connect(hello)
    transport.deliver(sent([call(1), call(2)]))
    await run_pending(40)
    ((_, _, body),) = Answers(transport.take()).read
    entry = gateway.sink.written[-1]
    assert outcomes(entry) == [("eth_chainId", "ok", None)] * 2
    assert [each.response_bytes for each in entry.calls] == [(len(body) - len(b"[,]")) // 2] * 2


async def test_batch_larger_than_a_record_becomes_several() -> None:
    gateway = await open_gateway(limits=model.LimitSettings(batch_calls=10_000))
    count = 2 * MAX_CALLS + 3
    request = sent([call(number, "eth_call") for number in range(count)])
    entries = await recorded(gateway, request)
    assert [len(entry.calls) for entry in entries] == [MAX_CALLS, MAX_CALLS, 3]
    assert {entry.request_id for entry in entries} == {entries[0].request_id}
    body = len(request.partition(b"\r\n\r\n")[2])
    assert body - 3 <= sum(entry.request_bytes for entry in entries) <= body


@pytest.mark.parametrize("body", [NOTIFICATION, [NOTIFICATION, NOTIFICATION]])
async def test_notifications_are_written_though_nothing_is_answered(body: object, gateway: FakeGateway) -> None:
    assert await answers_to(gateway, sent(body)) == [(204, None)]
    (entry,) = gateway.sink.written
    assert entry.status == 204
    assert outcomes(entry) == [("eth_call", "ok", None)] * (len(body) if isinstance(body, list) else 1)


async def test_notification_that_failed_is_written_with_no_answer() -> None:
    gateway = await open_gateway(node=lambda _: http(b"<html>"))
    assert await answers_to(gateway, sent(NOTIFICATION), seconds=1.0) == [(204, None)]
    (entry,) = gateway.sink.written
    assert entry.status == 204
    assert entry.calls == (CallEntry("eth_call", "upstream_error", -32603, 0),)


async def test_what_callers_send_is_cut(gateway: FakeGateway) -> None:
    agent, origin = "user-agent: " + "a" * 600, "origin: https://" + "o" * 600
    (entry,) = await recorded(gateway, sent(call(1, "m" * 600), agent, origin))
    assert entry.calls[0].method == "m" * 64
    assert entry.agent == b"a" * 256
    assert entry.origin == b"https://" + b"o" * 248


@pytest.mark.parametrize(
    ("trusted", "forwarded", "address"),
    [
        ((), "198.51.100.7", "192.0.2.1"),
        (("203.0.113.0/24",), "198.51.100.7", "192.0.2.1"),
        (("192.0.2.0/24",), "198.51.100.7", "198.51.100.7"),
        (("192.0.2.0/24",), "203.0.113.9, 198.51.100.7, 192.0.2.8", "198.51.100.7"),
        (("192.0.2.0/24",), "", "192.0.2.1"),
    ],
)
async def test_address_is_that_of_the_caller_as_far_as_proxies_are_trusted(
    trusted: tuple[str, ...], forwarded: str, address: str
) -> None:
    gateway = await open_gateway(trusted=trusted)
    (entry,) = await recorded(gateway, sent(call(1), f"x-forwarded-for: {forwarded}"))
    assert entry.address == address


async def test_second_upstream_and_both_attempts_are_written() -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    transport.deliver(sent(call(1)))
    await run_pending()
    gateway.loop.transports[0].deliver(http(b"", status=b"500 Oh"))
    await run_pending()
    gateway.loop.transports[1].deliver(echo(gateway.loop.transports[1].take().partition(b"\r\n\r\n")[2]))
    await run_pending()
    (entry,) = gateway.sink.written
    assert (entry.upstream, entry.calls[0].outcome) == ("up1", "ok")
    assert tries(entry.attempts) == [("up0", "status"), ("up1", "answered")]


# --- Refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "body", "status", "outcome"),
    [
        ({"methods": ("eth_call",)}, call(1), 403, ("eth_chainId", "method_not_allowed", -32601)),
        ({"networks": ("eth/sepolia",)}, call(1), 403, ("eth_chainId", "network_not_allowed", -32601)),
        ({}, call(1, "admin_peers"), 403, ("admin_peers", "method_not_allowed", -32601)),
        ({"capped_until": 2e9}, call(1), 402, ("eth_chainId", "spending_cap", -32017)),
        ({"expires_at": 1.0}, call(1), 401, ("", "token_expired", -32016)),
        ({}, b"{", 400, ("", "parse_error", -32700)),
        ({}, {"method": 1}, 400, ("", "invalid_request", -32600)),
        ({}, [], 400, ("", "invalid_request", -32600)),
        ({}, [call(1)] * 101, 413, ("", "batch_too_large", -32600)),
    ],
)
async def test_refusal_of_a_known_team_is_written(
    fields: dict[str, Any], body: object, status: int, outcome: tuple[str, str, int], gateway: FakeGateway
) -> None:
    known(gateway, **fields)
    for _ in range(2):  # from the store, then from memory
        ((answered, reply),) = await answers_to(gateway, sent(body))
        assert answered == status
        assert reply["error"]["code"] == outcome[2]
    for entry in gateway.sink.written:
        assert (entry.team_id, entry.source_id, entry.status) == ("team_1", "tok_1", status)
        assert outcomes(entry) == [outcome]
        assert entry.calls[0].response_bytes > 0
        assert (entry.attempts, entry.upstream) == (0, "")
    assert len(gateway.sink.written) == 2


async def test_token_that_may_not_stand_in_the_address_is_written_for_its_team(gateway: FakeGateway) -> None:
    entries = await recorded(gateway, sent(call(1), token=None, path=f"/x/eth/mainnet/{TOKEN}"))
    assert [(entry.team_id, outcomes(entry)) for entry in entries] == [("team_1", [("", "token_invalid", -32016)])]


async def test_rate_limited_calls_are_written(gateway: FakeGateway) -> None:
    known(gateway, requests_per_second=2)
    batch = [call(1), call(2, "eth_blockNumber"), call(3)]
    answers = await answers_to(gateway, *[sent(call(number)) for number in range(3)], sent(batch))
    assert [status for status, _ in answers] == [200, 200, 429, 429]
    *_, single, several = gateway.sink.written
    assert [outcomes(entry)[0][1] for entry in gateway.sink.written] == ["ok", "ok", *["rate_limited"] * 2]
    assert outcomes(single) == [("eth_chainId", "rate_limited", -32005)]
    assert [method for method, *_ in outcomes(several)] == ["eth_chainId", "eth_blockNumber", "eth_chainId"]
    assert [each.response_bytes > 0 for each in several.calls] == [True, False, False]


@pytest.mark.parametrize("body", [call(1), NOTIFICATION])
async def test_failure_of_upstreams_is_written_and_is_no_success(body: object, gateway: FakeGateway) -> None:
    gateway.loop.refusing = True
    (entry,) = await recorded(gateway, sent(body), seconds=1.0)
    assert [each.outcome for each in entry.calls] == ["upstream_unavailable"]
    assert entry.status == (204 if body is NOTIFICATION else 503)
    assert (entry.upstream, tries(entry.attempts)) == ("up1", [("up0", "connection"), ("up1", "connection")] * 2)


async def test_failure_of_upstreams_is_written_for_each_call_of_a_batch(gateway: FakeGateway) -> None:
    gateway.loop.refusing = True
    (entry,) = await recorded(gateway, sent([call(1), call(2)]), seconds=1.0)
    assert (entry.status, [each.outcome for each in entry.calls]) == (200, ["upstream_unavailable"] * 2)
    for each in entry.calls:
        assert (each.upstream, tries(each.attempts)) == ("up1", [("up0", "connection"), ("up1", "connection")] * 2)


async def test_call_that_is_cut_off_by_the_end_of_the_service_is_written() -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    transport.deliver(post(1))
    await run_pending()
    gateway.context.under_way.stop()
    await run_pending()
    assert responses(transport) == ["503 overloaded"]
    assert [entry.calls[0].outcome for entry in gateway.sink.written] == ["overloaded"]


@pytest.mark.parametrize(
    "request_",
    [
        sent(call(1), token=secrets.new_token()),
        sent(call(1), token="tg_nonsense"),
        sent(call(1), token=None),
        sent(call(1), "origin: https://unknown.example", token=None),
        sent(call(1), path="/x/eth/nowhere"),
        sent(call(1)).replace(b"application/json", b"text/plain"),
        sent(call(1)).replace(b"POST", b"PUT"),
        b"OPTIONS /x/eth/mainnet HTTP/1.1\r\nhost: gate\r\norigin: https://app.example.com\r\n\r\n",
        b"not HTTP at all\r\n\r\n",
    ],
    ids=["unknown", "nonsense", "none", "origin", "network", "type", "method", "preflight", "bytes"],
)
async def test_nothing_is_written_of_callers_that_are_not_known(request_: bytes, gateway: FakeGateway) -> None:
    transport = gateway.connect(hello)
    transport.deliver(request_)
    await run_pending(60)
    assert transport.take(), "answered all the same"
    assert (gateway.sink.waiting, gateway.sink.written) == ([], [])


# --- Many refusals -----------------------------------------------------------------------------------------


def refused(gateway: FakeGateway, count: int) -> list[bytes]:
    known(gateway, capped_until=2e9)
    return [sent(call(number), f"x-request-id: r{number}") for number in range(count)]


async def test_refusals_beyond_ten_a_second_become_one_record_with_their_number(gateway: FakeGateway) -> None:
    answers = await answers_to(gateway, *refused(gateway, 25))
    assert [status for status, _ in answers] == [402] * 25
    assert [entry.request_id for entry in gateway.sink.written] == [b"r%d" % n for n in range(SINGLE_REFUSALS)]
    gateway.context.tick()
    gateway.sink.write()
    assert len(gateway.sink.written) == SINGLE_REFUSALS + 1
    rest = gateway.sink.written[-1]
    assert (rest.request_id, rest.stands_for, outcomes(rest)) == (
        b"r10",
        15,
        [("eth_chainId", "spending_cap", -32017)],
    )
    assert sum(entry.stands_for for entry in gateway.sink.written) == 25
    gateway.context.tick()
    assert gateway.sink.waiting == []
    await answers_to(gateway, sent(call(1)))
    assert gateway.sink.written[-1].stands_for == 1, "a new second, a new count"


async def test_teams_are_counted_apart_and_answers_of_nodes_are_never_summed_up(gateway: FakeGateway) -> None:
    other = secrets.new_token()
    gateway.store.tokens[digest(other)] = token_grant(Team("team_2", "globex"))
    await answers_to(gateway, *refused(gateway, 15))
    await answers_to(gateway, *[sent(call(number), token=other) for number in range(40)])
    assert [entry.team_id for entry in gateway.sink.written] == ["team_1"] * 10 + ["team_2"] * 40


async def test_batches_none_of_whose_calls_is_answered_by_a_node_cannot_fill_the_disk(
    gateway: FakeGateway,
) -> None:
    batch = [call(number, "admin_peers") for number in range(6)]
    await answers_to(gateway, sent(batch), sent(batch), sent(batch))
    assert [len(entry.calls) for entry in gateway.sink.written] == [6]
    gateway.context.tick()
    gateway.sink.write()
    rest = gateway.sink.written[-1]
    assert (rest.stands_for, len(rest.calls), rest.status) == (12, 1, 200)


async def test_batch_with_one_answer_of_a_node_is_always_written_whole(gateway: FakeGateway) -> None:
    batch = [*[call(number, "admin_peers") for number in range(30)], call(31)]
    (entry,) = await recorded(gateway, sent(batch))
    assert len(entry.calls) == 31


# --- A full disk -------------------------------------------------------------------------------------------


async def test_full_sink_refuses_calls_of_known_callers_and_grows_no_more(gateway: FakeGateway) -> None:
    await answers_to(gateway, sent(call(1)))
    gateway.sink.is_full = True
    for _ in range(5):
        answers = await answers_to(gateway, *[sent(call(number)) for number in range(40)])
        assert {(status, reply["error"]["data"]["reason"]) for status, reply in answers} == {(503, "overloaded")}
        gateway.context.tick()
    assert len(gateway.sink.written) == 1, "nothing more was taken"
    assert not gateway.sink.waiting
    gateway.sink.is_full = False
    gateway.context.tick()
    gateway.sink.write()
    rest = gateway.sink.written[-1]
    assert (rest.stands_for, rest.calls[0].outcome) == (200, "overloaded")
    ((status, _),) = await answers_to(gateway, sent(call(1)))
    assert status == 200


async def test_call_that_was_under_way_when_the_sink_became_full_is_still_written() -> None:
    gateway = await open_gateway(node=lambda _: None)
    transport = gateway.connect(hello)
    transport.deliver(post(1))
    await run_pending()
    gateway.sink.is_full = True
    answer_upstream(gateway)
    await run_pending()
    assert responses(transport) == ["200 1"]
    assert [entry.calls[0].outcome for entry in gateway.sink.written] == ["ok"]


@pytest.mark.parametrize(
    ("calls", "outcome"),
    [
        (["ok", "node_error", "overloaded"], "ok"),
        (["node_error", "overloaded"], "node_error"),
        (["overloaded", "method_not_allowed"], "refused"),
        ([], "refused"),
    ],
)
def test_request_became_what_the_best_of_its_calls_did(calls: list[str], outcome: str) -> None:
    assert outcome_of([CallEntry("eth_call", each) for each in calls]) == outcome
