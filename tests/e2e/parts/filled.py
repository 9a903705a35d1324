"""A gateway filled for tests of refusals: a token of every kind, and what all refusals share."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tollgate.core import secrets

from .ports import free_port
from .raw_http import Answer, call
from .tollgate import Gateway, serving
from .upstream import Reply, Upstream, upstream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BLOCK = call("eth_blockNumber", id=7)
BODY_BYTES, BATCH_CALLS = 4000, 5


@dataclass(frozen=True)
class FilledGateway:
    """The gateway, the node behind it, and the secrets of its tokens by what is special about them."""

    gateway: Gateway
    node: Upstream
    tokens: dict[str, str]

    def exchange(self, body: bytes = BLOCK, token: str | None = "good", **more: Any) -> Answer:
        """Send a request with a token of this kind."""
        return self.gateway.exchange(body, token=self.tokens[token] if token else None, **more)


@contextmanager
def open_filled(folder: Path) -> Iterator[FilledGateway]:
    """Run it: `eth/mainnet` answers, `eth/dead` cannot be reached."""
    limits = {"body_bytes": BODY_BYTES, "batch_calls": BATCH_CALLS, "misses_per_second_per_address": 1000}
    with upstream() as node:
        node.on("eth_gasPrice", Reply(b"<html>busy</html>"))
        node.on("eth_feeHistory", Reply(hang=True))
        patient: dict[str, object] = {"url": node.url, "timeout_seconds": 0.2}
        dead: dict[str, object] = {"url": f"http://127.0.0.1:{free_port()}"}
        networks = {"eth/mainnet": [patient], "eth/dead": [dead]}
        # So that a cap of nothing is reached without a call.
        billing = {"free_requests": 0}
        with serving(folder, networks, {"limits": limits, "billing": billing}) as gateway:
            yield FilledGateway(gateway, node, _fill(gateway))


def _fill(gateway: Gateway) -> dict[str, str]:
    far = time.time() + 3600
    books = gateway.books
    team = books.team()
    capped = books.team("capped", capped_until=far, spending_cap=0)
    slow = books.team("slow", requests_per_second=1)
    kinds: dict[str, dict[str, Any]] = {
        "good": {},
        "expired": {"expires_at": time.time() - 1},
        "disabled": {"active": False},
        "dead-only": {"networks": ("eth/dead",)},
        "calls-only": {"methods": ("eth_call", "eth_get*")},
        "elsewhere": {"addresses": ("198.51.100.0/24",)},
        "one": {"requests_per_second": 1},
        "three": {"requests_per_second": 3},
        "capped": {"capped_until": far, "monthly_requests": 0},
        "capped-one": {"capped_until": far, "monthly_requests": 0, "requests_per_second": 1},
        "three-dead": {"requests_per_second": 3, "networks": ("eth/dead",)},
        "capped-before": {"capped_until": time.time() - 1},
    }
    tokens = {name: books.token(team, **fields)[0] for name, fields in kinds.items()}
    tokens["team-capped"] = books.token(capped)[0]
    tokens["team-slow"] = books.token(slow)[0]
    tokens["deleted"], row = books.token(team)
    books.do(lambda records: records.tokens.remove(id=row.id))
    tokens["unknown"] = secrets.new_token()
    tokens["mistyped"] = tokens["good"][:-1] + ("a" if tokens["good"][-1] != "a" else "b")
    books.domain(team, "example.com")
    books.domain(team, "per-address.com", address_per_minute=1)
    books.domain(team, "per-domain.com", domain_per_minute=1)
    return tokens


def refused(answer: Answer, reason: str, status: int, code: int, id: object = None) -> dict[str, Any]:  # noqa: A002
    """Check everything that all refusals share, and give the error object."""
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/json"
    parsed = answer.json()
    assert set(parsed) == {"jsonrpc", "id", "error"}
    assert parsed["jsonrpc"] == "2.0"
    assert parsed["id"] == id
    error: dict[str, Any] = parsed["error"]
    assert set(error) == {"code", "message", "data"}
    assert error["code"] == code
    assert error["data"]["reason"] == reason
    assert error["data"]["request_id"] == answer.headers["x-request-id"]
    assert len(error["message"].split()) > 3, "it shows what to do next"
    return error


def batch(count: int) -> bytes:
    """Write a batch of equal calls."""
    return b"[%b]" % b",".join([BLOCK] * count)
