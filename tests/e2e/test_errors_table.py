"""Every row of the error table (spec.md, section 7), from outside over a real socket."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from parts.filled import BATCH_CALLS, BLOCK, BODY_BYTES, FilledGateway, batch, open_filled, refused
from parts.processes import eventually
from parts.raw_http import JSON, Answer, call, request
from parts.tollgate import bearer, serving
from parts.upstream import Reply, upstream
from tollgate.errors import ALL_REFUSALS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilledGateway]:
    with open_filled(tmp_path_factory.mktemp("service")) as it:
        yield it


# ---- 400, 413, 415: what was sent


@pytest.mark.parametrize("body", [b"", b"{bad", b'{"a":1}x', b"\xff\xfe", b'"\xed\xa0\x80"', b"[1,"])
def test_body_that_is_not_json(filled: FilledGateway, body: bytes) -> None:
    refused(filled.exchange(body), "parse_error", 400, -32700)


@pytest.mark.parametrize(
    ("body", "id"),
    [
        (b"[]", None),
        (b"1", None),
        (b'"eth_blockNumber"', None),
        (b'{"method":"eth_blockNumber","id":3}', 3),
        (b'{"jsonrpc":"1.0","method":"eth_blockNumber","id":3}', 3),
        (b'{"jsonrpc":"2.0","id":"x"}', "x"),
        (b'{"jsonrpc":"2.0","method":5,"id":3}', 3),
        (b'{"jsonrpc":"2.0","method":"eth_call","params":"0x","id":3}', 3),
        (b'{"jsonrpc":"2.0","method":"eth_call","params":[],"id":{}}', None),
        (b'{"jsonrpc":"2.0","method":"eth_call","params":[],"id":true}', None),
    ],
)
def test_json_that_is_no_request(filled: FilledGateway, body: bytes, id: object) -> None:  # noqa: A002
    refused(filled.exchange(body), "invalid_request", 400, -32600, id)


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/jsonp"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": ""},
        {"Content-Encoding": "gzip"},
    ],
)
def test_other_media_type(filled: FilledGateway, headers: dict[str, str]) -> None:
    error = refused(filled.exchange(headers=headers), "unsupported_media_type", 415, -32600)
    assert "Content-Type: application/json" in error["message"] or "ompressed" in error["message"]


def test_request_without_a_media_type(filled: FilledGateway) -> None:
    with filled.gateway.connect() as connection:
        answer = connection.exchange("/x/eth/mainnet", BLOCK, bearer(filled.tokens["good"]))
    refused(answer, "unsupported_media_type", 415, -32600)


def test_body_declared_too_large(filled: FilledGateway) -> None:
    error = refused(filled.exchange(b" " * (BODY_BYTES + 1)), "body_too_large", 413, -32600)
    assert str(BODY_BYTES) in error["message"]
    assert filled.exchange(BLOCK.ljust(BODY_BYTES)).status == 200


def test_body_that_turns_out_too_large(filled: FilledGateway) -> None:
    headers = {**JSON, **bearer(filled.tokens["good"]), "Transfer-Encoding": "chunked"}
    chunks = b"7d0\r\n%b\r\n" % (b" " * 2000) * 3 + b"0\r\n\r\n"
    with filled.gateway.connect() as connection:
        refused(connection.exchange("/x/eth/mainnet", chunks, headers), "body_too_large", 413, -32600)


def test_batch_of_too_many_calls(filled: FilledGateway) -> None:
    error = refused(filled.exchange(batch(BATCH_CALLS + 1)), "batch_too_large", 413, -32600)
    assert "6" in error["message"]
    assert "5" in error["message"]
    assert len(filled.exchange(batch(BATCH_CALLS)).json()) == BATCH_CALLS


# ---- 404, 405: where


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_other_http_method(filled: FilledGateway, method: str) -> None:
    answer = filled.exchange(b"", method=method)
    error = refused(answer, "method_not_post", 405, -32600)
    assert {name.strip() for name in answer.headers["allow"].split(",")} == {"POST", "OPTIONS"}
    assert "POST" in error["message"]


@pytest.mark.parametrize("path", ["/x/eth/goerli", "/x/doge/mainnet", "/x/eth", "/x/", "/x/eth/mainnet/a/b"])
def test_unknown_network(filled: FilledGateway, path: str) -> None:
    error = refused(filled.exchange(path=path), "unknown_network", 404, -32600)
    assert "/x/eth/mainnet" in error["message"]
    assert "/x/eth/dead" in error["message"]


# ---- 401, 403: who


def test_no_credentials(filled: FilledGateway) -> None:
    answer = filled.exchange(token=None)
    error = refused(answer, "token_missing", 401, -32016)
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "Authorization: Bearer" in error["message"]


@pytest.mark.parametrize("token", ["unknown", "mistyped", "deleted", "disabled"])
def test_bad_tokens_answer_alike(filled: FilledGateway, token: str) -> None:
    answer = filled.exchange(token=token)
    error = refused(answer, "token_invalid", 401, -32016)
    assert answer.headers["www-authenticate"] == "Bearer"
    unknown = filled.exchange(token="unknown").json()["error"]
    assert error["message"] == unknown["message"], "a refusal does not show which tokens exist"
    assert set(error["data"]) == set(unknown["data"]) == {"reason", "request_id"}


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer ", "Basic YTpi", "tg_x", "Bearer a b"])
def test_authorization_that_is_no_bearer_token(filled: FilledGateway, value: str) -> None:
    answer = filled.exchange(token=None, headers={"Authorization": value})
    refused(answer, "token_invalid", 401, -32016)
    assert answer.headers["www-authenticate"] == "Bearer"


def test_expired_token(filled: FilledGateway) -> None:
    answer = filled.exchange(token="expired")
    refused(answer, "token_expired", 401, -32016)
    assert answer.headers["www-authenticate"] == "Bearer"


def test_bad_token_from_a_whitelisted_domain(filled: FilledGateway) -> None:
    answer = filled.exchange(token="unknown", headers={"Origin": "https://example.com"})
    refused(answer, "token_invalid", 401, -32016)


def test_origin_that_is_not_whitelisted(filled: FilledGateway) -> None:
    answer = filled.exchange(token=None, headers={"Origin": "https://app.other.co.uk"})
    error = refused(answer, "origin_not_allowed", 403, -32016)
    assert "https://app.other.co.uk" in error["message"]
    assert "tollgate rpc whitelist add other.co.uk --team" in error["message"]
    assert answer.headers["access-control-allow-origin"] == "https://app.other.co.uk"


@pytest.mark.parametrize(
    "origin",
    ["null", "https://127.0.0.1", "https://[::1]", "http://example.com", "https://u@example.com", "x", ""],
)
def test_origin_that_can_never_be_whitelisted(filled: FilledGateway, origin: str) -> None:
    answer = filled.exchange(token=None, headers={"Origin": origin})
    refused(answer, "origin_not_allowed", 403, -32016)


def test_token_for_other_addresses(filled: FilledGateway) -> None:
    error = refused(filled.exchange(token="elsewhere"), "address_not_allowed", 403, -32016)
    assert "127.0.0.1" in error["message"]


def test_token_for_another_network(filled: FilledGateway) -> None:
    error = refused(filled.exchange(token="dead-only"), "network_not_allowed", 403, -32601, 7)
    assert "eth/dead" in error["message"]


@pytest.mark.parametrize(("method", "token"), [("eth_chainId", "calls-only"), ("admin_peers", "good")])
def test_method_that_may_not_be_called(filled: FilledGateway, method: str, token: str) -> None:
    error = refused(filled.exchange(call(method, id="m"), token=token), "method_not_allowed", 403, -32601, "m")
    assert method in error["message"]


def test_method_on_the_list_of_its_token(filled: FilledGateway) -> None:
    assert filled.exchange(call("eth_getBalance"), token="calls-only").status == 200


# ---- 402, 429: how much


@pytest.mark.parametrize("token", ["capped", "team-capped"])
def test_spending_cap(filled: FilledGateway, token: str) -> None:
    answer = filled.exchange(token=token)
    refused(answer, "spending_cap", 402, -32017)
    assert "retry-after" not in answer.headers


def test_cap_of_an_earlier_month(filled: FilledGateway) -> None:
    assert filled.exchange(token="capped-before").status == 200


def over_limit(filled: FilledGateway, **how: Any) -> Answer:
    """Call until a limit of one a second refuses."""

    def exchange() -> Answer | None:
        answer = filled.exchange(**how)
        return answer if answer.status != 200 else None

    return eventually(exchange, what="the limit") or pytest.fail("never refused")


@pytest.mark.parametrize(
    ("limit", "how"),
    [
        ("token", {"token": "one"}),
        ("team", {"token": "team-slow"}),
        ("domain", {"token": None, "headers": {"Origin": "https://per-domain.com"}}),
        ("address", {"token": None, "headers": {"Origin": "https://a.per-address.com"}}),
    ],
)
def test_rate_limit_shows_which_and_when(filled: FilledGateway, limit: str, how: dict[str, Any]) -> None:
    answer = over_limit(filled, **how)
    error = refused(answer, "rate_limited", 429, -32005)
    assert error["data"]["limit"] == limit
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert f'"{limit}";r=0' in answer.headers["ratelimit"]
    assert f'"{limit}";q=1;w=' in answer.headers["ratelimit-policy"]


def test_batch_larger_than_the_burst_can_never_pass(filled: FilledGateway) -> None:
    answer = filled.exchange(batch(4), token="three")
    error = refused(answer, "rate_limited", 429, -32005)
    assert "retry-after" not in answer.headers
    assert "retry_after" not in error["data"]
    assert "batch" in error["message"]


# ---- 502, 503, 504: failures of upstreams


def test_upstream_that_cannot_be_reached(filled: FilledGateway) -> None:
    refused(filled.exchange(path="/x/eth/dead"), "upstream_unavailable", 503, -32603, 7)


def test_upstream_that_answers_nonsense(filled: FilledGateway) -> None:
    refused(filled.exchange(call("eth_gasPrice", id="g")), "upstream_error", 502, -32603, "g")


def test_upstream_that_does_not_answer(filled: FilledGateway) -> None:
    refused(filled.exchange(call("eth_feeHistory", id=-1)), "upstream_timeout", 504, -32603, -1)


def test_upstream_failure_within_a_batch_is_per_call(filled: FilledGateway) -> None:
    answer = filled.exchange(b"[%b,%b]" % (BLOCK, call("eth_chainId", id="c")), path="/x/eth/dead")
    assert answer.status == 200
    reasons = [(each["id"], each["error"]["data"]["reason"]) for each in answer.json()]
    assert reasons == [(7, "upstream_unavailable"), ("c", "upstream_unavailable")]


def test_overload(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("overload")
    with upstream() as node, serving(folder, {"eth/mainnet": [node.url]}, {"limits": {"in_flight": 1}}) as it:
        node.on("eth_call", Reply(hang=True))
        token, _ = it.books.token(it.books.team())
        assert it.exchange(BLOCK, token=token).status == 200
        with it.connect() as waiting:
            waiting.send(request("/x/eth/mainnet", call("eth_call"), {**JSON, **bearer(token)}))
            eventually(lambda: node.bodies("eth_call"), what="the call upstream")
            answer = it.exchange(BLOCK, token=token)
            refused(answer, "overloaded", 503, -32603)
            assert int(answer.headers["retry-after"]) >= 1
            assert it.exchange(b"{bad", headers={"Content-Type": "x/y"}).status == 415, "refusals cost nothing"
            node.on("eth_call", Reply())
            node.hang_up()
            assert waiting.read().status in (200, 502), "a kept connection that was closed is tried again"
        assert it.exchange(BLOCK, token=token).status == 200


def test_every_row_of_the_table_is_tested_here() -> None:
    source = Path(__file__).read_text()
    rows = {refusal.reason for refusal in ALL_REFUSALS} - {"internal_error"}
    assert not {reason for reason in rows if f'"{reason}", ' not in source}
