"""The attributes of a request's span, by OpenTelemetry's conventions: never parameters or results."""

from __future__ import annotations

from tollgate.gateway.messages import Request
from tollgate.gateway.recording.journal import REFUSED, outcome_of
from tollgate.gateway.tracing import Attributes

BATCH = "batch"


def end_span(request: Request, status: int) -> None:
    """End the span of a request that was answered."""
    span, network, calls = request.span, request.network, request.calls
    assert span is not None  # noqa: S101 - the caller has checked
    span.name = request.method.decode("latin-1") or "HTTP"
    attributes: Attributes = {
        "rpc.system": "jsonrpc",
        "http.request.method": span.name,
        "http.response.status_code": status,
        "tollgate.request_id": request.request_id.decode("latin-1"),
        "tollgate.outcome": outcome_of(calls) if calls else REFUSED if status >= 400 else "ok",
    }
    if network is not None:
        # Not the requested path: it may hold a token.
        span.name = attributes["http.route"] = f"/x/{network.path}"
        attributes["tollgate.network"] = network.path
    if network is not None and calls:
        if len(calls) > 1:
            span.name = BATCH
            attributes["tollgate.calls"] = len(calls)
        else:
            attributes |= _way(request)
            if method := calls[0].method:
                # Callers can invent names.
                span.name = attributes["rpc.method"] = network.catalogue.label(method)
    span.end(attributes, failed=status >= 500)


def _way(request: Request) -> Attributes:
    """The way that one call took."""
    (call,) = request.calls
    route = request.route
    way: Attributes = {"tollgate.outcome": call.outcome, "tollgate.cache": route.counted or route.cache}
    if route.upstream:
        way["tollgate.upstream"] = route.upstream
        way["tollgate.attempts"] = route.attempts
    if call.code is not None:
        way["rpc.jsonrpc.error_code"] = call.code
    return way
