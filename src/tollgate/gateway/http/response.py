"""Replies and errors into bytes: status line, headers, body. The only place that writes HTTP to a caller."""

from __future__ import annotations

import http

from msgspec import Raw

from tollgate.core import jsonrpc
from tollgate.errors import InvalidRequest, Refusal
from tollgate.gateway.http import cors
from tollgate.gateway.messages import Answer, Request

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in http.HTTPStatus
}
_JSON = b"content-type: application/json\r\n"
END = b"\r\n"
_CLOSE = b"connection: close\r\n"
_CLOSE_AND_END = _CLOSE + END
# Most answers are short, and formatting a number is slow.
FEW = 1_024
LENGTHS = [b"\r\ncontent-length: %d\r\n" % length for length in range(FEW)]
# Only a 204 has no body, and it must not have a length (RFC 9110, 8.6).
LENGTHS[0] = END


def refuse(request: Request, refusal: Refusal, call_id: Raw | int = jsonrpc.NULL) -> Answer:
    """Answer a whole request with a refusal."""
    if isinstance(refusal, InvalidRequest):
        call_id = Raw(refusal.caller_id)
    lines = b"".join(b"%b: %b\r\n" % header for header in refusal.headers)
    return Answer(refusal.status, error_body(request, refusal, call_id), lines)


def error_body(request: Request, refusal: Refusal, call_id: Raw | int) -> bytes:
    """The JSON-RPC error object of a refusal."""
    if refusal.as_node:
        return jsonrpc.encode_error(call_id, refusal.code, refusal.message)
    data = {"reason": refusal.reason, "request_id": request.request_id.decode("latin-1"), **refusal.data}
    return jsonrpc.encode_error(call_id, refusal.code, refusal.message, data)


def shown(upstreams: str, cache: str) -> bytes:
    """The header lines with the origin of an answer."""
    who = b"x-tollgate-upstream: %b\r\n" % upstreams.encode() if upstreams else b""
    return b"x-tollgate-cache: %b\r\n%b" % (cache.encode(), who)


def ok_head(date: bytes) -> bytes:
    """The head of an answer with status 200, up to the request's id; `date` is header lines, or empty."""
    return _STATUS_LINES[200] + _JSON + date + b"x-request-id: "


def no_content_head(date: bytes) -> bytes:
    """The head of an answer with status 204, likewise."""
    return _STATUS_LINES[204] + date + b"x-request-id: "


def render_result(
    head: bytes, request_id: bytes, rates: bytes, extra: bytes, body: bytes, *, close: bool = False
) -> bytes:
    """Write an answer as HTTP/1.1, after its head up to the request's id. `rates` and `extra` are header lines."""
    length = len(body)
    framing = LENGTHS[length] if length < FEW else b"\r\ncontent-length: %d\r\n" % length
    return b"".join((head, request_id, framing, rates, extra, _CLOSE_AND_END if close else END, body))


def render(request: Request, answer: Answer, date: bytes, *, close: bool) -> bytes:
    """Write an answer as HTTP/1.1. `date` is a header line, or empty."""
    if answer.status == 200:
        origin = cors.headers(request.origin) if request.origin is not None else b""
        return render_result(
            ok_head(date), request.request_id, request.rates, answer.headers + origin, answer.body, close=close
        )
    return b"%b%bx-request-id: %b\r\n%b%b%b%b%b\r\n%b" % (
        _STATUS_LINES[answer.status],
        _JSON if answer.body else b"",
        request.request_id,
        date,
        answer.headers,
        request.rates,
        cors.headers(request.origin) if request.origin is not None else b"",
        _framing(answer, close),
        b"" if request.method == b"HEAD" else answer.body,
    )


def _framing(answer: Answer, close: bool) -> bytes:
    # A 204 must not have a length (RFC 9110, 8.6).
    length = b"" if answer.status == 204 else b"content-length: %d\r\n" % len(answer.body)
    return length + _CLOSE if close else length
