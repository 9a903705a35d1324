"""The one error tree: every refusal on `/x/`, with its reason, HTTP status, JSON-RPC code and hint.

    TollgateError
    ├── StartError                     the service cannot start; the message includes what to do
    └── Refusal                        answered to a caller as a JSON-RPC error object
        ├── ParseError  InvalidRequest  UnsupportedMediaType  BodyTooLarge  BatchTooLarge
        ├── MethodNotPost  UnknownNetwork
        ├── TokenMissing  TokenInvalid  TokenExpired  OriginNotAllowed
        ├── NetworkNotAllowed  MethodNotAllowed
        ├── RateLimited  SpendingCap  Overloaded
        ├── UpstreamUnavailable  UpstreamError  UpstreamTimeout
        └── InternalError              a defect of ours; never the fault of a body

Owns the messages to callers. No I/O, and no knowledge of requests: the code that raises an error passes
the facts, `gateway/http/response.py` renders it. `docs/reference/errors.md` is generated from these classes.
"""

from __future__ import annotations

from typing import ClassVar

Header = tuple[bytes, bytes]


class TollgateError(Exception):
    """Base of everything this project raises on purpose."""


class StartError(TollgateError):
    """The service cannot start as it is set up."""


class Refusal(TollgateError):
    """A request, or one call of a batch, that is refused. `message` includes what to do next."""

    reason: ClassVar[str]
    status: ClassVar[int]
    code: ClassVar[int]
    when: ClassVar[str]
    hint: ClassVar[str]
    as_node: ClassVar[bool] = False
    """Whether it is written as a node writes an error: without our `data`."""

    def __init__(
        self, message: str = "", *, data: dict[str, object] | None = None, headers: tuple[Header, ...] = ()
    ) -> None:
        self.message = message or self.hint
        self.data = data or {}
        self.headers = headers
        super().__init__(self.message)


class ParseError(Refusal):
    """The body is not JSON."""

    reason, status, code = "parse_error", 400, -32700
    when = "The body is not JSON in UTF-8."
    hint = "The body is not valid JSON: send one JSON-RPC 2.0 object, or an array of them, in UTF-8."


class InvalidRequest(Refusal):
    """JSON, but not a JSON-RPC 2.0 request."""

    reason, status, code = "invalid_request", 400, -32600
    when = "The body is not a JSON-RPC 2.0 request, or an empty batch."
    hint = 'Not a JSON-RPC 2.0 request: send {"jsonrpc":"2.0","method":"…","params":[…],"id":1}.'

    def __init__(self, message: str = "", *, caller_id: bytes = b"null") -> None:
        self.caller_id = caller_id
        super().__init__(message)


class UnsupportedMediaType(Refusal):
    """Content-Type is not application/json, or the body is compressed."""

    reason, status, code = "unsupported_media_type", 415, -32600
    when = "`Content-Type` is not `application/json`, or the body is compressed."
    hint = "Send the header Content-Type: application/json."


class BodyTooLarge(Refusal):
    """The body is over the limit."""

    reason, status, code = "body_too_large", 413, -32600
    when = "The body is larger than `limits.body_bytes`."
    hint = "The body is too large: send fewer or smaller calls."


class BatchTooLarge(Refusal):
    """The batch has too many calls."""

    reason, status, code = "batch_too_large", 413, -32600
    when = "The batch has more calls than `limits.batch_calls`."
    hint = "The batch has too many calls: split it."


class MethodNotPost(Refusal):
    """Anything but POST or OPTIONS."""

    reason, status, code = "method_not_post", 405, -32600
    when = "The HTTP method is neither POST nor OPTIONS; the answer has `Allow`."
    hint = "Use POST with a JSON-RPC body."

    def __init__(self) -> None:
        super().__init__(headers=((b"allow", b"POST, OPTIONS"),))


class UnknownNetwork(Refusal):
    """No such family or network."""

    reason, status, code = "unknown_network", 404, -32600
    when = "No such family or network; the answer lists those that exist."
    hint = "No such network."


class _Unauthorized(Refusal):
    status, code = 401, -32016

    def __init__(self, message: str = "") -> None:
        super().__init__(message, headers=((b"www-authenticate", b"Bearer"),))


class TokenMissing(_Unauthorized):
    """No credentials at all."""

    reason = "token_missing"
    when = "Neither `Authorization` nor an `Origin`; with `WWW-Authenticate: Bearer`."
    hint = "No credentials: send the header Authorization: Bearer <token>, or call from a whitelisted domain."


class TokenInvalid(_Unauthorized):
    """The token is unknown, deleted, disabled or mistyped; which of them is not disclosed."""

    reason = "token_invalid"
    when = "The token is mistyped, unknown, deleted or disabled; with `WWW-Authenticate: Bearer`."
    hint = "The token is not valid: check it, or create one with `tollgate rpc tokens create`."


class TokenExpired(_Unauthorized):
    """The token was good until its end."""

    reason = "token_expired"
    when = "The token's lifetime is over; with `WWW-Authenticate: Bearer`."
    hint = "The token has expired: create a new one with `tollgate rpc tokens create`."


class OriginNotAllowed(Refusal):
    """A browser call from a domain that no team has whitelisted."""

    reason, status, code = "origin_not_allowed", 403, -32016
    when = "The `Origin` is not whitelisted; the answer names it and the command that would allow it."
    hint = "This origin is not whitelisted."


class AddressNotAllowed(Refusal):
    """The token is not for this client address."""

    reason, status, code = "address_not_allowed", 403, -32016
    when = "The token is restricted to other client addresses; the answer names the caller's."
    hint = "This token may not be used from this address."


class NetworkNotAllowed(Refusal):
    """The token is not for this network."""

    reason, status, code = "network_not_allowed", 403, -32601
    when = "The token is restricted to other networks."
    hint = "This token may not call this network."


class MethodNotAllowed(Refusal):
    """The method is refused by the service, the network or the token."""

    reason, status, code = "method_not_allowed", 403, -32601
    when = "The method is not allowed on this network, for this token, or without one."
    hint = "This method may not be called here."


class RateLimited(Refusal):
    """Too many requests for one of the limits."""

    reason, status, code = "rate_limited", 429, -32005
    when = "A rate limit is exceeded; the answer names it (token, team, domain, address) and has `Retry-After`."
    hint = "Too many requests: wait and send fewer."


class SpendingCap(Refusal):
    """The team's spending cap or the token's monthly cap is reached."""

    reason, status, code = "spending_cap", 402, -32017
    when = "The team's spending cap or the token's monthly cap is reached."
    hint = "The spending cap of this month is reached: raise it, or wait for the next month (UTC)."


class Overloaded(Refusal):
    """The service sheds load."""

    reason, status, code = "overloaded", 503, -32603
    when = "The service sheds load, cannot record what it answers, or stops; with `Retry-After`."
    hint = "The service is overloaded: try again."

    def __init__(self, message: str = "", *, retry_after: int = 1) -> None:
        super().__init__(
            message, data={"retry_after": retry_after}, headers=((b"retry-after", b"%d" % retry_after),)
        )


class UpstreamUnavailable(Refusal):
    """No upstream could be reached."""

    reason, status, code = "upstream_unavailable", 503, -32603
    when = "No upstream of the network could be reached."
    hint = "No upstream of this network can be reached now: try again later."


class UpstreamError(Refusal):
    """Upstreams answered, but with nonsense."""

    reason, status, code = "upstream_error", 502, -32603
    when = "The upstreams answered with errors of HTTP or with nonsense."
    hint = "The upstreams of this network gave no usable answer: try again later."


class UpstreamTimeout(Refusal):
    """The deadline passed."""

    reason, status, code = "upstream_timeout", 504, -32603
    when = "The deadline passed before an upstream answered."
    hint = "No upstream answered in time: try again, or ask for less."


class InternalError(Refusal):
    """A defect of ours. The log has the trace under the request id."""

    reason, status, code = "internal_error", 500, -32603
    when = "A defect of the service; its log has the details under the request id."
    hint = "The service failed at this request: report the request id to its operator."


ALL_REFUSALS: tuple[type[Refusal], ...] = (
    ParseError,
    InvalidRequest,
    UnsupportedMediaType,
    BodyTooLarge,
    BatchTooLarge,
    MethodNotPost,
    UnknownNetwork,
    TokenMissing,
    TokenInvalid,
    TokenExpired,
    OriginNotAllowed,
    AddressNotAllowed,
    NetworkNotAllowed,
    MethodNotAllowed,
    RateLimited,
    SpendingCap,
    UpstreamUnavailable,
    UpstreamError,
    UpstreamTimeout,
    Overloaded,
    InternalError,
)
