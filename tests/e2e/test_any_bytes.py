"""Any bytes as a body: never a 5xx, never a hang, always an answer that a client can read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from parts.raw_http import RawConnection, call
from parts.stack import open_stack
from parts.upstream import Received, Reply

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

LIMITS = {"body_bytes": 20_000}
EXAMPLES = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass(frozen=True)
class CallerConnection:
    """A kept connection: what one body breaks, the next would notice."""

    connection: RawConnection
    headers: dict[str, str]

    def check(self, body: bytes) -> None:
        answer = self.connection.exchange("/x/eth/mainnet", body, self.headers)
        assert answer.status in (200, 204, 400, 403, 413), answer
        if answer.status == 204:
            assert answer.body == b""
            return
        parsed = json.loads(answer.body)
        for each in parsed if isinstance(parsed, list) else [parsed]:
            assert each["jsonrpc"] == "2.0"
            assert "id" in each
            assert ("result" in each) != ("error" in each)


def node(received: Received) -> Reply:
    """Answer as a node does that cannot be put out by anything."""
    body = received.body
    if not body.startswith(b"["):
        return Reply(b'{"jsonrpc":"2.0","id":1,"result":"0x1"}')
    try:
        ids = [each["id"] for each in json.loads(body)]
    except (ValueError, RecursionError):
        return Reply(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error"}}')
    return Reply(json.dumps([{"jsonrpc": "2.0", "id": each, "result": "0x1"} for each in ids]).encode())


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CallerConnection]:
    folder = tmp_path_factory.mktemp("bytes")
    with open_stack(folder, {"limits": LIMITS}) as stack:
        stack.node.on("*", node)
        with stack.gateway.connect() as connection:
            yield CallerConnection(connection, stack.headers)


@EXAMPLES
@given(st.binary(max_size=300))
@example(b"[" * 10_000)
@example(b'{"a":' * 3_000)
@example(b"[" * 5_000 + b"]" * 5_000)
@example(b'{"jsonrpc":"2.0","id":1,"method":"eth_call","params":' + b"[" * 5_000 + b"]" * 5_000 + b"}")
@example(b'{"jsonrpc":"2.0","id":' + b"[" * 5_000 + b"]" * 5_000 + b',"method":"eth_call"}')
@example(b"\xef\xbb\xbf" + call("eth_call"))
@example(call("eth_call").decode().encode("utf-16"))
@example(b"\x00")
@example(b'{"jsonrpc":"2.0","method":"\\ud800","id":1}')
@example(b'{"jsonrpc":"2.0","method":"m","id":"\\ud800"}')
@example(b'{"jsonrpc":"2.0","method":"m","id":1e999999}')
@example(b'{"jsonrpc":"2.0","method":"m","params":[1e999999,-0,"\\ud800"],"id":1}')
@example(b'{"jsonrpc":"2.0","method":"m","id":' + b"9" * 4_000 + b"}")
@example(b" " * 20_001)
def test_any_bytes(caller: CallerConnection, body: bytes) -> None:
    caller.check(body)


def values(depth: int = 3) -> st.SearchStrategy[object]:
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    keys = st.sampled_from(["jsonrpc", "method", "params", "id", "result", "error"]) | st.text(max_size=4)
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=depth * 4,
    )


REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | values(1),
        "method": st.sampled_from(["eth_call", "eth_chainId", "admin_peers", "", "eth_\ud800", "é"]) | values(1),
        "params": values(),
        "id": values(1),
        "extra": values(1),
    },
)


@EXAMPLES
@given(REQUESTS | st.lists(REQUESTS | values(1), max_size=5) | values())
def test_any_json(caller: CallerConnection, value: object) -> None:
    # NaN and lone surrogates are what a careless client would send.
    caller.check(json.dumps(value).encode())


@EXAMPLES
@given(
    st.lists(REQUESTS, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 2), st.binary(max_size=3)), max_size=6),
)
def test_json_with_bytes_changed(
    caller: CallerConnection, value: list[object], changes: list[tuple[int, int, bytes]]
) -> None:
    body = json.dumps(value if len(value) > 1 else value[0]).encode()
    for at, removed, added in changes:
        at %= len(body) + 1
        body = body[:at] + added + body[at + removed :]
    caller.check(body)
