"""The order of the checks (spec.md, section 7): of two reasons to refuse, the first in it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from parts.filled import BATCH_CALLS, BODY_BYTES, FilledGateway, batch, open_filled
from parts.processes import eventually
from parts.raw_http import Answer, call

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

TEXT = {"Content-Type": "text/plain"}
ELSEWHERE = "/x/eth/goerli"
LARGE = b" " * (BODY_BYTES + 1)
BAD = b"{bad"
TOO_MANY = batch(BATCH_CALLS + 1)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilledGateway]:
    with open_filled(tmp_path_factory.mktemp("service")) as it:
        yield it


def outcome(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json()["error"]["data"]["reason"]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        # 405 before all
        ({"method": "PUT", "path": ELSEWHERE}, (405, "method_not_post")),
        ({"method": "PUT", "headers": TEXT, "body": LARGE, "token": None}, (405, "method_not_post")),
        # 404
        ({"path": ELSEWHERE, "headers": TEXT}, (404, "unknown_network")),
        ({"path": ELSEWHERE, "body": LARGE}, (404, "unknown_network")),
        ({"path": ELSEWHERE, "token": "unknown"}, (404, "unknown_network")),
        ({"path": ELSEWHERE, "token": None}, (404, "unknown_network")),
        ({"path": ELSEWHERE, "body": BAD}, (404, "unknown_network")),
        # 415
        ({"headers": TEXT, "body": LARGE}, (415, "unsupported_media_type")),
        ({"headers": TEXT, "token": None}, (415, "unsupported_media_type")),
        ({"headers": TEXT, "token": "capped"}, (415, "unsupported_media_type")),
        ({"headers": TEXT, "body": BAD}, (415, "unsupported_media_type")),
        # 413, bytes
        ({"body": LARGE, "token": None}, (413, "body_too_large")),
        ({"body": LARGE, "token": "unknown"}, (413, "body_too_large")),
        ({"body": LARGE, "token": "capped"}, (413, "body_too_large")),
        # credentials
        ({"body": BAD, "token": None}, (401, "token_missing")),
        ({"body": BAD, "token": "unknown"}, (401, "token_invalid")),
        ({"body": BAD, "token": "expired"}, (401, "token_expired")),
        ({"body": TOO_MANY, "token": "unknown"}, (401, "token_invalid")),
        (
            {"body": BAD, "token": None, "headers": {"Origin": "https://other.com"}},
            (403, "origin_not_allowed"),
        ),
        (
            {"token": "unknown", "headers": {"Origin": "https://other.com"}},
            (401, "token_invalid"),
        ),
        ({"body": call("admin_peers"), "token": "unknown"}, (401, "token_invalid")),
        # 402
        ({"body": BAD, "token": "capped"}, (402, "spending_cap")),
        ({"body": TOO_MANY, "token": "team-capped"}, (402, "spending_cap")),
        ({"body": call("admin_peers"), "token": "capped"}, (402, "spending_cap")),
        # 400
        ({"body": b"[]", "token": "dead-only"}, (400, "invalid_request")),
        ({"body": BAD, "token": "dead-only"}, (400, "parse_error")),
        ({"body": TOO_MANY[:-1], "token": "good"}, (400, "parse_error")),
        # 413, calls: before the limit on them and before the policy
        ({"body": TOO_MANY, "token": "three"}, (413, "batch_too_large")),
        ({"body": TOO_MANY, "token": "dead-only"}, (413, "batch_too_large")),
        # 429, the other calls: before the policy
        ({"body": batch(4), "token": "three-dead"}, (429, "rate_limited")),
        # policy before the upstream
        ({"body": call("admin_peers"), "path": "/x/eth/dead"}, (403, "method_not_allowed")),
    ],
)
def test_first_reason_answers(filled: FilledGateway, how: dict[str, Any], expected: tuple[int, str]) -> None:
    assert outcome(filled.exchange(**how)) == expected


@pytest.mark.parametrize("body", [BAD, b"[]", TOO_MANY, call("admin_peers")])
def test_limit_comes_before_a_look_at_the_body(filled: FilledGateway, body: bytes) -> None:
    """One call is counted before the body is parsed, so nonsense uses up the limit too."""

    def limited() -> bool:
        return outcome(filled.exchange(body, token="one")) == (429, "rate_limited")

    assert eventually(limited, what="the limit")


def test_cap_comes_before_the_limit_and_does_not_use_it_up(filled: FilledGateway) -> None:
    for _ in range(4):
        assert outcome(filled.exchange(token="capped-one")) == (402, "spending_cap")


def test_policy_is_per_call_within_a_batch(filled: FilledGateway) -> None:
    calls = [call("eth_chainId", id=1), call("admin_peers", id=2), b"5", call("eth_chainId", id=4)]
    answer = filled.exchange(b"[%b]" % b",".join(calls))
    assert answer.status == 200
    first, second, third, fourth = answer.json()
    assert (first["id"], first["result"]["method"]) == (1, "eth_chainId")
    assert (second["id"], second["error"]["data"]["reason"]) == (2, "method_not_allowed")
    assert (third["id"], third["error"]["data"]["reason"]) == (None, "invalid_request")
    assert (fourth["id"], fourth["result"]["method"]) == (4, "eth_chainId")
    assert second["error"]["data"]["request_id"] == answer.headers["x-request-id"]
