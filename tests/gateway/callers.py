"""Callers of a gateway: their tokens and teams, the requests they send, and short forms of the answers."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Raw
from tests.gateway.fake_node import Error

from tollgate.core import secrets
from tollgate.core.models import Domain, Grant, Team, Token
from tollgate.core.shapes import ABSENT, Reply, WrittenCall
from tollgate.gateway.messages import Request

PEPPER = b"p" * 32
TOKEN = secrets.new_token()
TEAM = Team("team_1", "acme")
OTHER_TEAM = Team("team_2", "globex")


def token_grant(team: Team = TEAM, **fields: Any) -> Grant:
    """A token of a team."""
    return Grant(team, Token("tok_1", team.id, "ci", "tg_", 0.0, **fields))


def domain_grant(team: Team = TEAM, **fields: Any) -> Grant:
    """A whitelist entry of a team."""
    return Grant(team, domain=Domain("dom_1", team.id, "example.com", 0.0, **fields))


def digest(token: str) -> bytes:
    """What the store keeps of a token."""
    return secrets.digest(token.encode(), PEPPER)


def request(body: bytes = b"", *, peer: str = "192.0.2.1", **headers: str) -> Request:
    """A request as a caller connection passes it on; `_` in a header's name means `-`."""
    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    made = Request(b"POST", named, peer, b"rid-1")
    made.body = body
    return made


def with_token(body: bytes = b"", token: str = TOKEN) -> Request:
    """A request of the usual caller."""
    return request(body, authorization=f"Bearer {token}")


def raw(params: Any) -> Any:
    """Params as they are read."""
    if isinstance(params, dict):
        return {name: Raw(json.dumps(each).encode()) for name, each in params.items()}
    return [Raw(json.dumps(each).encode()) for each in params]


def summary(reply: Any) -> Any:
    """An answer in short: its result, the code of its error, or the reason of a refusal."""
    if not isinstance(reply, Reply):
        return reply.reason
    if reply.error is not ABSENT:
        return Error(**{name: json.loads(bytes(reply.error))[name] for name in ("code", "message")})
    return json.loads(bytes(reply.result))


def written(method: str, *params: Any) -> WrittenCall:
    """A call with an id that is no integer."""
    return WrittenCall(method, raw(params), Raw(b'"a"'))


def call(call_id: object, method: str = "eth_chainId", **members: Any) -> dict[str, object]:
    """A call, to be written as JSON."""
    return {"jsonrpc": "2.0", "id": call_id, "method": method, **members}


def reason(reply: Any) -> str:
    """Why a call was refused."""
    return str(reply["error"]["data"]["reason"])


Note = dict[str, object]
NOTIFICATION: Note = {"jsonrpc": "2.0", "method": "eth_call"}


def sent(body: object, *headers: str, token: str | None = TOKEN, path: str = "/x/eth/mainnet") -> bytes:
    """A request as HTTP."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "host: gate",
        "content-type: application/json",
        f"content-length: {len(data)}",
        *([f"authorization: Bearer {token}"] if token else []),
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data
