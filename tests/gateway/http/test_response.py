"""Answers as bytes, to the letter."""

import json

from tests.gateway.callers import request

from tollgate.errors import InvalidRequest, MethodNotPost, Overloaded, RateLimited, TokenInvalid
from tollgate.gateway.http import response
from tollgate.gateway.messages import Answer, Request

DATE = b"date: Tue, 14 Nov 2023 22:13:20 GMT\r\n"


def limited(incoming: Request) -> Request:
    incoming.rates = b"ratelimit: x\r\n"
    return incoming


def test_usual_answer() -> None:
    assert response.render(request(), Answer(200, b"{}"), DATE, close=False) == (
        b"HTTP/1.1 200 OK\r\n"
        b"content-type: application/json\r\n" + DATE + b"x-request-id: rid-1\r\n"
        b"content-length: 2\r\n"
        b"\r\n"
        b"{}"
    )


def test_answer_with_limits_that_closes() -> None:
    assert response.render(limited(request()), Answer(200, b"{}"), DATE, close=True) == (
        b"HTTP/1.1 200 OK\r\n"
        b"content-type: application/json\r\n" + DATE + b"x-request-id: rid-1\r\n"
        b"content-length: 2\r\n"
        b"ratelimit: x\r\n"
        b"connection: close\r\n"
        b"\r\n"
        b"{}"
    )


def test_limits_are_reported_on_a_usual_answer_too() -> None:
    assert b"\r\nratelimit: x\r\n" in response.render(limited(request()), Answer(200, b"{}"), b"", close=False)


def test_no_content_has_neither_length_nor_type() -> None:
    assert response.render(request(), Answer(204, b""), b"", close=False) == (
        b"HTTP/1.1 204 No Content\r\nx-request-id: rid-1\r\n\r\n"
    )


def test_answer_to_an_origin_has_its_headers_whatever_the_status() -> None:
    incoming = request(origin="https://a.example")
    for answer in (Answer(200, b"{}"), Answer(204, b""), response.refuse(incoming, TokenInvalid())):
        rendered = response.render(incoming, answer, b"", close=False)
        assert b"\r\naccess-control-allow-origin: https://a.example\r\n" in rendered
        assert b"\r\nvary: Origin\r\n" in rendered


def test_answer_to_head_has_no_body() -> None:
    """Or a client that keeps the connection takes the body for the next answer (RFC 9110, 9.3.2)."""
    incoming = Request(b"HEAD", {}, "192.0.2.1", b"rid-1")
    rendered = response.render(incoming, response.refuse(incoming, MethodNotPost()), b"", close=False)
    assert rendered.startswith(b"HTTP/1.1 405 ")
    assert rendered.endswith(b"\r\n\r\n")


def test_refusal_is_a_json_rpc_error_with_its_headers() -> None:
    answer = response.refuse(request(), Overloaded(), 7)
    assert answer.status == 503
    assert answer.headers == b"retry-after: 1\r\n"
    assert json.loads(answer.body)["error"] == {
        "code": -32603,
        "message": Overloaded.hint,
        "data": {"reason": "overloaded", "request_id": "rid-1", "retry_after": 1},
    }


def test_refusal_without_a_call_stands_under_null() -> None:
    answer = response.refuse(request(), RateLimited(data={"limit": "token"}))
    parsed = json.loads(answer.body)
    assert parsed["id"] is None
    assert parsed["jsonrpc"] == "2.0"
    assert parsed["error"]["data"]["limit"] == "token"


def test_invalid_request_stands_under_the_id_it_had() -> None:
    assert json.loads(response.refuse(request(), InvalidRequest(caller_id=b'"x"')).body)["id"] == "x"
