"""Origin headers: which host they name, and which roots let it pass."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.core.origins import candidates, host_of, normal_host

labels = st.text("abcz019-", min_size=1, max_size=6).filter(
    lambda label: not label.startswith("-") and not label.endswith("-")
)
hosts = st.builds(
    lambda parts, last: ".".join([*parts, last]), st.lists(labels, max_size=5), st.sampled_from(["com", "io"])
)


LONGEST = ".".join(["a" * 61, *["a" * 63] * 3])
"""A name of 253 letters and dots."""


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://example.com", "example.com"),
        ("https://app.example.com", "app.example.com"),
        ("https://EXAMPLE.Com", "example.com"),
        ("HTTPS://example.com", "example.com"),
        ("https://example.com.", "example.com"),
        ("https://example.com:8443", "example.com"),
        ("https://example.com:65535", "example.com"),
        ("https://bücher.example", "xn--bcher-kva.example"),
        ("https://BÜCHER.example", "xn--bcher-kva.example"),
        ("https://xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("https://例え.テスト", "xn--r8jz45g.xn--zckzah"),
        ("https://example。com", "example.com"),
        ("https://my_app.example.com", "my_app.example.com"),
        ("https://1.example.com", "1.example.com"),
        ("https://1e3.com", "1e3.com"),
        (f"https://{LONGEST}", LONGEST),
    ],
)
def test_https_origin_names_its_host(origin: str, host: str) -> None:
    assert host_of(origin, allow_localhost=False) == host


REFUSED = [
    "",
    f"https://a{LONGEST}",
    "null",
    "example.com",
    "//example.com",
    "http://example.com",
    "http://example.com:443",
    "ftp://example.com",
    "file://",
    "chrome-extension://abcdefgh",
    "wss://example.com",
    "https:example.com",
    "https:/example.com",
    "https://",
    "https://.",
    "https://example.com..",
    "https://.example.com",
    "https://exa..mple.com",
    "https://-example.com",
    "https://example-.com",
    "https://user@example.com",
    "https://user:pass@example.com",
    "https://evil.com@example.com",
    "https://example.com@evil.com",
    "https://example.com/",
    "https://example.com/path",
    "https://example.com?x",
    "https://example.com#x",
    "https://evil.com\\.example.com",
    "https://example.com:",
    "https://example.com:65536",
    "https://example.com:99999",
    "https://example.com:x",
    "https://example.com:-1",
    "https://example.com:\u0661",
    "https://example.com https://evil.com",
    "https://example.com, https://evil.com",
    "https://exam ple.com",
    " https://example.com",
    "https://example.com\n",
    "https://example.com\x00",
    "https://*.example.com",
    "https://ex%61mple.com",
    "https://℀.com",
    "https://" + "a" * 64 + ".com",
    "https://" + "a." * 130 + "com",
]
ADDRESSES = [
    "127.0.0.1",
    "93.184.216.34",
    "127.1",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0X7F.1",
    "0x",
    "0177.0.0.1",
    "127.0.0.1.",
    "1.2.3.4.5",
    "example.123",
    "999.999.999.999",
    "09",
    "\uff11\uff12\uff17.0.0.1",
    "[::1]",
    "[2001:db8::1]",
    "[::ffff:127.0.0.1]",
    "::1",
    "[fe80::1%25eth0]",
]


@pytest.mark.parametrize("origin", REFUSED)
def test_origin_that_is_no_https_name_never_matches(origin: str) -> None:
    assert host_of(origin, allow_localhost=False) is None
    assert host_of(origin, allow_localhost=True) is None


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("port", ["", ":8080"])
def test_ip_address_in_any_form_never_matches(address: str, port: str) -> None:
    assert host_of(f"https://{address}{port}", allow_localhost=True) is None


@pytest.mark.parametrize("scheme", ["http", "https", "HTTP"])
@pytest.mark.parametrize("name", ["localhost", "LocalHost", "localhost.", "app.localhost"])
@pytest.mark.parametrize("port", ["", ":3000"])
def test_localhost_matches_only_by_setting(scheme: str, name: str, port: str) -> None:
    origin = f"{scheme}://{name}{port}"
    assert host_of(origin, allow_localhost=False) is None
    assert host_of(origin, allow_localhost=True) == name.lower().removesuffix(".")


def test_setting_for_localhost_opens_http_for_nothing_else() -> None:
    for name in ("notlocalhost", "localhost.com", "example.com", "127.0.0.1", "[::1]"):
        assert host_of(f"http://{name}", allow_localhost=True) is None


@pytest.mark.parametrize("origin", ["http\u017f://localhost", "\uff48ttps://localhost", "ws://localhost"])
def test_look_alike_of_a_scheme_is_no_scheme(origin: str) -> None:
    assert host_of(origin, allow_localhost=True) is None


@pytest.mark.parametrize(
    "host",
    [
        "notexample.com",
        "example.com.evil.com",
        "example.co",
        "example.comm",
        "xexample.com",
        "example-com.evil.com",
        "com",
        "evil.com",
        "ex\u0430mple.com",  # with a Cyrillic letter
    ],
)
def test_look_alike_of_a_root_does_not_pass_for_it(host: str) -> None:
    found = host_of(f"https://{host}", allow_localhost=False)
    assert found is not None
    assert "example.com" not in candidates(found)


def test_candidates_are_the_host_and_its_parents_longest_first() -> None:
    assert candidates("a.b.example.com") == ["a.b.example.com", "b.example.com", "example.com", "com"]
    assert candidates("localhost") == ["localhost"]


def test_host_of_many_labels_looks_up_few_names_and_still_finds_its_root() -> None:
    found = candidates("x." * 100 + "example.co.uk")
    assert len(found) <= 8
    assert "example.co.uk" in found


@given(hosts, hosts)
def test_host_passes_by_a_root_exactly_when_the_roots_labels_end_it(host: str, root: str) -> None:
    ends_it = host.split(".")[-len(root.split(".")) :] == root.split(".")
    assert (root in candidates(host)) == ends_it


@given(hosts, st.lists(labels, max_size=4))
def test_every_subdomain_of_a_root_passes(root: str, below: list[str]) -> None:
    origin = "https://" + ".".join([*below, root])
    host = host_of(origin, allow_localhost=False)
    # Up to eight labels: no suffix of the list is longer than five.
    assert host is not None
    assert (root in candidates(host)) or len(root.split(".")) > 8


@given(st.text() | st.text().map("https://".__add__), st.booleans())
def test_any_text_is_a_host_or_none(origin: str, allow_localhost: bool) -> None:
    host = host_of(origin, allow_localhost=allow_localhost)
    if host is not None:
        assert host.isascii()
        assert host == host.lower()
        assert normal_host(host) == host


@given(st.text())
def test_any_name_is_normalised_once_and_for_all(name: str) -> None:
    host = normal_host(name)
    if host is not None:
        assert normal_host(host) == host
        assert 1 <= len(host) <= 253
