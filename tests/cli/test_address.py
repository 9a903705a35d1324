from __future__ import annotations

import pytest

from tollgate.cli.address import DEFAULT_URL, from_here, is_exposed, is_loopback, normal
from tollgate.settings.model import DEFAULT_PORT


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://tollgate.example.com", "https://tollgate.example.com"),
        ("https://Tollgate.Example.com/", "https://tollgate.example.com"),
        ("HTTPS://tollgate.example.com:443//", "https://tollgate.example.com"),
        ("http://tollgate.example.com:80", "http://tollgate.example.com"),
        ("http://127.0.0.1:8402", "http://127.0.0.1:8402"),
        ("http://[::1]:8402/", "http://[::1]:8402"),
        ("https://example.com/tollgate/", "https://example.com/tollgate"),
    ],
)
def test_one_server_has_one_address(text: str, url: str) -> None:
    assert normal(text, named="--url") == url


def test_the_default_is_where_the_service_listens() -> None:
    assert f"http://127.0.0.1:{DEFAULT_PORT}" == DEFAULT_URL


@pytest.mark.parametrize(
    ("url", "loopback", "exposed"),
    [
        ("http://127.0.0.1:8402", True, False),
        ("http://127.9.9.9", True, False),
        ("http://[::1]", True, False),
        ("http://localhost", True, False),
        ("http://app.localhost", True, False),
        ("http://localhost.example.com", False, True),
        ("http://192.0.2.1", False, True),
        ("https://192.0.2.1", False, False),
        ("https://example.com", False, False),
    ],
)
def test_secrets_in_clear_are_seen(url: str, loopback: bool, exposed: bool) -> None:
    assert (is_loopback(url), is_exposed(url)) == (loopback, exposed)


@pytest.mark.parametrize(
    ("link", "url", "expected"),
    [
        ("http://127.0.0.1:8402/a?b=c", "https://rpc.example.com", "https://rpc.example.com/a?b=c"),
        ("http://127.0.0.1:8402/a", "http://192.168.1.7:8402", "http://192.168.1.7:8402/a"),
        ("http://localhost:8402/a", "https://example.com/tollgate", "https://example.com/tollgate/a"),
        ("https://rpc.example.com/a", "http://10.0.0.1:8402", "https://rpc.example.com/a"),
        ("http://127.0.0.1:8402/a", "http://127.0.0.1:9000", "http://127.0.0.1:8402/a"),
    ],
)
def test_a_link_of_a_server_that_does_not_know_its_address_is_made_with_ours(
    link: str, url: str, expected: str
) -> None:
    assert from_here(link, url) == expected
