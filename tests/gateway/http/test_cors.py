"""What browsers are shown, to the letter."""

import pytest
from tests.gateway.callers import request

from tollgate.gateway.http import cors
from tollgate.gateway.messages import Answer

ALWAYS = b"access-control-allow-methods: POST\r\naccess-control-max-age: 7200\r\n"


def test_answer_to_an_origin_echoes_it_and_exposes_what_a_page_must_read() -> None:
    assert cors.headers(b"https://a.example") == (
        b"access-control-allow-origin: https://a.example\r\n"
        b"access-control-expose-headers: Retry-After, RateLimit, RateLimit-Policy, X-Request-Id, "
        b"X-Tollgate-Cache, X-Tollgate-Upstream\r\n"
        b"vary: Origin\r\n"
    )


def test_answer_without_an_origin_has_no_such_headers() -> None:
    assert cors.headers(None) == b""


def test_preflight_without_wishes() -> None:
    assert cors.preflight(request()) == Answer(204, b"", ALWAYS)


@pytest.mark.parametrize(
    "wanted", ["authorization", "content-type,authorization", "Content-Type, X-A", "a" * 1024, "x-a ,\tx-b"]
)
def test_preflight_echoes_the_names_of_headers(wanted: str) -> None:
    answer = cors.preflight(request(access_control_request_headers=f" {wanted} "))
    assert answer.headers == ALWAYS + f"access-control-allow-headers: {wanted}\r\n".encode()


@pytest.mark.parametrize("wanted", ["", "a" * 1025, "a b", "a,,b", "a:", "a,", "a\r\nset-cookie: x", "ä"])
def test_preflight_does_not_echo_what_is_no_list_of_names(wanted: str) -> None:
    assert cors.preflight(request(access_control_request_headers=wanted)).headers == ALWAYS


def test_credentials_are_never_allowed() -> None:
    incoming = request(access_control_request_headers="authorization")
    assert b"credentials" not in cors.headers(b"https://a.example") + cors.preflight(incoming).headers
