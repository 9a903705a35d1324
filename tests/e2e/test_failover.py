"""What the gateway makes of upstreams that fail: reads go on to the next, writes are never repeated."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from parts.ports import free_port
from parts.processes import eventually
from parts.raw_http import Answer, call
from parts.tollgate import Gateway, serving
from parts.upstream import Received, Reply, Upstream, result, upstream

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

READ, WRITE = "eth_getBalance", "eth_sendRawTransaction"
LARGEST = 100_000
# After so long a node counts as silent: longer than a slow machine holds up one that answers.
SILENCE_SECONDS = 2.0
TORN = b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"jsonrpc":"2.0","id":1,"re'

FAILURES = {
    "500": Reply(status=500),
    "502": Reply(b"<html>bad gateway</html>", status=502),
    "503": Reply(status=503),
    "429": Reply(status=429),
    "401": Reply(status=401),
    "redirect": Reply(status=302, headers=(("Location", "http://127.0.0.1:1/"),)),
    "html": Reply(b"<html>hello</html>"),
    "empty": Reply(b""),
    "no-content": Reply(b"", status=204, length=0),
    "not-a-response": Reply(b'{"jsonrpc":"2.0","id":1}'),
    "list": Reply(b"[]"),
    "error-that-is-none": Reply(b'{"jsonrpc":"2.0","id":1,"error":"oops"}'),
    "not-utf8": Reply(b'{"jsonrpc":"2.0","id":1,"result":"\xff"}'),
    "not-http": Reply(raw=b"SSH-2.0-OpenSSH_9.6\r\n"),
    "torn": Reply(raw=TORN),
    "torn-chunks": Reply(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}"),
    "torn-gzip": Reply(gzip.compress(b'{"jsonrpc":"2.0","id":1,"result":1}')[:-9]),
    "torn-head": Reply(raw=b"HTTP/1.1 200 O"),
    "reset": Reply(reset=True),
    "hang-up": Reply(raw=b""),
    "silence": Reply(hang=True),
    "too-large": Reply(b'{"jsonrpc":"2.0","id":1,"result":"%b"}' % (b"a" * LARGEST)),
    "gzip-bomb": Reply(b'{"jsonrpc":"2.0","id":1,"result":"%b"}' % (b"a" * 9_000_000), packed=True),
}


@dataclass(frozen=True)
class Pair:
    gateway: Gateway
    first: Upstream
    second: Upstream
    token: str

    def exchange(self, body: bytes, network: str = "eth/mainnet") -> Answer:
        return self.gateway.exchange(body, token=self.token, path=f"/x/{network}")

    def counts(self) -> tuple[int, int]:
        return len(self.first.received), len(self.second.received)


@pytest.fixture(scope="module")
def whole_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with upstream() as first, upstream() as second:
        one: dict[str, object] = {"url": first.url, "timeout_seconds": SILENCE_SECONDS}
        two: dict[str, object] = {"url": second.url, "timeout_seconds": SILENCE_SECONDS, "priority": 5}
        unreachable: dict[str, object] = {"url": f"http://127.0.0.1:{free_port()}"}
        networks = {
            "eth/mainnet": [two, {**one, "name": "first"}],  # the priority counts, not the place
            "eth/single": [one],
            "eth/refused": [unreachable, {**two, "name": "second"}],
            "starknet/mainnet": [one, {**two, "name": "second"}],
        }
        # No second attempts but those that follow from failures.
        settings: dict[str, dict[str, object]] = {"limits": {"response_bytes": LARGEST}}
        for path in networks:
            settings[f"families.{path.replace('/', '.')}"] = {
                "cache": False,
                "hedge": False,
                # A write that is not signed by its caller.
                "open_methods": ["eth_sendTransaction"],
            }
        with serving(tmp_path_factory.mktemp("failover"), networks, settings) as gateway:
            token, _ = gateway.books.token(gateway.books.team())
            yield Pair(gateway, first, second, token)


def is_asked_first(pair: Pair, network: str) -> bool:
    """Whether the first node is in rotation."""
    before = len(pair.first.received)
    pair.exchange(call(READ), network)
    return len(pair.first.received) > before


@pytest.fixture
def pair(whole_pair: Pair) -> Pair:
    """Give both nodes a clean start: no script, no upstream cooling down, no kept connection."""
    nodes = (whole_pair.first, whole_pair.second)
    for node in nodes:
        node.clear()
        node.on("*", result(node.url))
    for network in ("eth/mainnet", "eth/single", "starknet/mainnet"):
        eventually(partial(is_asked_first, whole_pair, network), what="the end of the breaker")
    for node in nodes:
        node.hang_up()
    eventually(lambda: not any(node.open for node in nodes), what="the end of the kept connections")
    for node in nodes:
        node.clear()
        node.on("*", result(node.url))
    return whole_pair


def outcome(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json()["error"]["data"]["reason"]


# ---- reads


@pytest.mark.parametrize("kind", FAILURES)
def test_read_goes_on_to_the_next_upstream(pair: Pair, kind: str) -> None:
    pair.first.on(READ, FAILURES[kind])
    answer = pair.exchange(call(READ, id="mine"))
    assert answer.status == 200
    assert answer.json() == {"jsonrpc": "2.0", "id": "mine", "result": pair.second.url}
    assert pair.counts()[1] == 1
    assert pair.counts()[0] in (1, 2)  # a kept connection that was gone is tried once more


@pytest.mark.parametrize("kind", FAILURES)
def test_batch_of_reads_goes_on_to_the_next_upstream(pair: Pair, kind: str) -> None:
    pair.first.on(READ, FAILURES[kind])
    pair.second.on("*", Reply())
    answer = pair.exchange(b"[%b,%b]" % (call(READ, id="a"), call("eth_chainId", id="b")))
    assert [(each["id"], each["result"]["method"]) for each in answer.json()] == [
        ("a", READ),
        ("b", "eth_chainId"),
    ]
    assert pair.counts()[1] == 1


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("500", (502, "upstream_error")),
        ("html", (502, "upstream_error")),
        ("reset", (502, "upstream_error")),
        ("torn", (502, "upstream_error")),
        ("too-large", (502, "upstream_error")),
        ("gzip-bomb", (502, "upstream_error")),
        ("silence", (504, "upstream_timeout")),
    ],
)
def test_without_a_next_upstream_it_is_reported(pair: Pair, kind: str, expected: tuple[int, str]) -> None:
    pair.first.on(READ, FAILURES[kind])
    assert outcome(pair.exchange(call(READ), "eth/single")) == expected
    assert pair.exchange(call("eth_chainId"), "eth/single").status == 200, "and the next call passes"


def test_first_upstream_is_called_again_after_a_failure(pair: Pair) -> None:
    pair.first.on(READ, FAILURES["500"])
    assert pair.exchange(call(READ)).json()["result"] == pair.second.url
    pair.first.on(READ, result("back"))
    assert pair.exchange(call(READ)).json()["result"] == "back"


def test_upstream_that_cannot_be_reached_is_passed_over(pair: Pair) -> None:
    assert pair.exchange(call(READ), "eth/refused").json()["result"] == pair.second.url


# ---- writes


@pytest.mark.parametrize("kind", FAILURES)
@pytest.mark.parametrize(
    ("network", "method"), [("eth/mainnet", WRITE), ("starknet/mainnet", "starknet_addInvokeTransaction")]
)
def test_signed_transaction_goes_on_to_the_next_upstream(pair: Pair, kind: str, network: str, method: str) -> None:
    pair.first.on(method, FAILURES[kind])
    answer = pair.exchange(call(method, "0x02"), network)
    assert answer.json()["result"] == pair.second.url
    assert (len(pair.first.bodies(method)), len(pair.second.bodies(method))) == (1, 1)


@pytest.mark.parametrize("kind", [kind for kind in FAILURES if kind != "429"])
@pytest.mark.parametrize("method", ["eth_sendTransaction", "eth_unheardOf"])
def test_write_that_is_not_signed_is_sent_to_one_upstream_once(pair: Pair, kind: str, method: str) -> None:
    pair.first.on(method, FAILURES[kind])
    answer = pair.exchange(call(method, "0x02"))
    assert answer.status in (502, 504)
    assert "may have been carried out" in answer.json()["error"]["message"]
    assert (len(pair.first.bodies(method)), len(pair.second.bodies(method))) == (1, 0)


def test_write_that_was_turned_away_goes_on_to_the_next_upstream(pair: Pair) -> None:
    pair.first.on("eth_sendTransaction", FAILURES["429"])
    assert pair.exchange(call("eth_sendTransaction", "0x02")).json()["result"] == pair.second.url


def test_write_in_a_batch_goes_its_own_way(pair: Pair) -> None:
    pair.first.on(READ, FAILURES["503"])
    answer = pair.exchange(b"[%b,%b]" % (call(READ, id=1), call(WRITE, id=2)))
    assert [each["result"] for each in answer.json()] == [pair.second.url, pair.first.url]
    assert (len(pair.first.bodies(WRITE)), len(pair.second.bodies(WRITE))) == (1, 0)


def test_write_goes_to_the_next_where_the_first_refuses_the_connection(pair: Pair) -> None:
    answer = pair.exchange(call(WRITE, "0x02"), "eth/refused")
    assert answer.json()["result"] == pair.second.url
    assert len(pair.second.bodies(WRITE)) == 1


def test_error_of_the_node_to_a_write_passes(pair: Pair) -> None:
    error = {"code": -32000, "message": "nonce too low"}
    pair.first.on(WRITE, Reply(json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}).encode()))
    answer = pair.exchange(call(WRITE, "0x02"))
    assert (answer.status, answer.json()["error"]) == (200, error)
    assert pair.counts() == (1, 0)


# ---- connections


def once_per_connection(node: Upstream) -> Any:
    """Answer the first request of a connection, and close without a word at the second."""

    def script(received: Received) -> Reply:
        before = [each for each in node.received if each.connection == received.connection]
        return result(node.url) if len(before) == 1 else Reply(raw=b"")

    return script


def test_stale_connection_is_tried_again_for_reads(pair: Pair) -> None:
    pair.first.on("*", once_per_connection(pair.first))
    for _ in range(4):
        assert pair.exchange(call(READ)).json()["result"] == pair.first.url
    assert pair.counts()[1] == 0


def test_stale_connection_is_not_tried_again_for_writes(pair: Pair) -> None:
    pair.first.on("*", once_per_connection(pair.first))
    assert pair.exchange(call(READ)).status == 200
    answer = pair.exchange(call("eth_sendTransaction", "0x02"))
    assert len(pair.first.bodies("eth_sendTransaction")) == 1
    assert not pair.second.bodies("eth_sendTransaction")
    assert answer.status in (200, 502)


def test_upstream_that_closes_after_every_answer(pair: Pair) -> None:
    pair.first.on("*", Reply(close=True))
    for number in range(6):
        method = "eth_sendTransaction" if number % 2 else READ
        answer = pair.exchange(call(method))
        assert answer.status == 200 or method != READ
        assert not pair.second.bodies("eth_sendTransaction")


def test_connections_are_kept(pair: Pair) -> None:
    pair.first.on("*", Reply())
    for _ in range(10):
        assert pair.exchange(call(READ)).status == 200
    assert len({received.connection for received in pair.first.received}) == 1


@pytest.mark.parametrize(
    "reply",
    [
        Reply(chunked=True),
        Reply(packed=True),
        Reply(packed=True, chunked=True),
        Reply(until_close=True),
        Reply(packed=True, until_close=True),
        Reply(headers=(("Connection", "close"),), close=True),
    ],
)
def test_answer_in_any_framing(pair: Pair, reply: Reply) -> None:
    pair.first.on("*", reply)
    large = ["0x" + "ab" * 10_000]
    for params in ([], large, []):
        answer = pair.exchange(call(READ, *params))
        assert answer.json()["result"] == {"method": READ, "params": params}
        assert answer.headers.get("content-encoding") is None
    assert pair.counts()[1] == 0


def test_interim_answer_is_passed_over(pair: Pair) -> None:
    body = b'{"jsonrpc":"2.0","id":1,"result":"0x1"}'
    final = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    pair.first.on(READ, Reply(raw=b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + final))
    assert pair.exchange(call(READ), "eth/single").json()["result"] == "0x1"


@pytest.mark.parametrize("change", ["short", "foreign", "doubled", "object"])
def test_batch_answer_that_does_not_fit_is_nonsense(pair: Pair, change: str) -> None:
    one = {"jsonrpc": "2.0", "id": 0, "result": 1}
    replies: dict[str, Any] = {
        "short": [one],
        "foreign": [one, {**one, "id": 77}],
        "doubled": [one, one],
        "object": one,
    }
    pair.first.on(READ, Reply(json.dumps(replies[change]).encode()))
    pair.second.on("*", Reply())
    answer = pair.exchange(b"[%b,%b]" % (call(READ, id="a"), call(READ, id="b")))
    assert [each["id"] for each in answer.json() if "result" in each] == ["a", "b"]
    assert pair.counts() == (1, 1)


def test_batch_goes_upstream_as_one(pair: Pair) -> None:
    pair.first.on("*", Reply())
    answer = pair.exchange(b"[%b]" % b",".join(call(READ, n, id=n) for n in range(100)))
    assert [each["result"]["params"] for each in answer.json()] == [[n] for n in range(100)]
    assert len(pair.first.received) == 1
