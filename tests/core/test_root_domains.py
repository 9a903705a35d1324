"""Which names a team may whitelist."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.core.origins import SHARED_GATEWAYS, NotARootDomain, candidates, root_domain, root_in


@pytest.mark.parametrize(
    ("name", "root"),
    [
        ("example.com", "example.com"),
        ("example.co.uk", "example.co.uk"),
        ("me.github.io", "me.github.io"),
        ("my-app.vercel.app", "my-app.vercel.app"),
        ("site.pages.dev", "site.pages.dev"),
        ("city.kawasaki.jp", "city.kawasaki.jp"),
        ("www.ck", "www.ck"),
        ("vitalik.eth.limo", "vitalik.eth.limo"),
        ("vitalik.eth.link", "vitalik.eth.link"),
        ("bafy.ipfs.dweb.link", "bafy.ipfs.dweb.link"),
        ("name.ipns.dweb.link", "name.ipns.dweb.link"),
        ("site.ipfs.io", "site.ipfs.io"),
        ("site.fleek.co", "site.fleek.co"),
        ("EXAMPLE.com", "example.com"),
        ("example.com.", "example.com"),
        (" example.com ", "example.com"),
        ("bücher.de", "xn--bcher-kva.de"),
        ("xn--bcher-kva.de", "xn--bcher-kva.de"),
        ("example.公司.cn", "example.xn--55qx5d.cn"),
    ],
)
def test_registrable_domain_is_a_root(name: str, root: str) -> None:
    assert root_domain(name) == root
    assert root_domain(root) == root


@pytest.mark.parametrize(
    "name", ["com", "co.uk", "github.io", "vercel.app", "公司.cn", "foo.kawasaki.jp", "s3.amazonaws.com"]
)
def test_public_suffix_is_refused(name: str) -> None:
    with pytest.raises(NotARootDomain, match="public suffix") as caught:
        root_domain(name)
    assert caught.value.suggestion == ""


def test_spec_names_the_shared_gateways() -> None:
    assert set(SHARED_GATEWAYS) == {
        "ipfs.io",
        "dweb.link",
        "ipfs.dweb.link",
        "ipns.dweb.link",
        "eth.limo",
        "eth.link",
        "fleek.co",
    }


@pytest.mark.parametrize("name", SHARED_GATEWAYS)
def test_shared_gateway_is_refused_as_a_public_suffix(name: str) -> None:
    with pytest.raises(NotARootDomain, match="public suffix"):
        root_domain(name)


@pytest.mark.parametrize(
    ("name", "root"),
    [
        ("app.example.com", "example.com"),
        ("a.b.c.example.co.uk", "example.co.uk"),
        ("www.me.github.io", "me.github.io"),
        ("www.city.kawasaki.jp", "city.kawasaki.jp"),
        ("app.vitalik.eth.limo", "vitalik.eth.limo"),
        ("a.bafy.ipfs.dweb.link", "bafy.ipfs.dweb.link"),
        ("shop.bücher.de", "xn--bcher-kva.de"),
    ],
)
def test_subdomain_is_refused_with_the_root_to_use_instead(name: str, root: str) -> None:
    with pytest.raises(NotARootDomain) as caught:
        root_domain(name)
    assert caught.value.suggestion == root
    assert root in str(caught.value)
    assert root_domain(root) == root


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "https://example.com",
        "example.com:443",
        "example.com/path",
        "*.example.com",
        ".example.com",
        "user@example.com",
        "exa mple.com",
        "example..com",
        "192.0.2.1",
        "::1",
        "2130706433",
        "a" * 64 + ".com",
    ],
)
def test_what_is_not_a_domain_name_is_refused(name: str) -> None:
    with pytest.raises(NotARootDomain, match="not a domain name"):
        root_domain(name)


@pytest.mark.parametrize("name", ["127.0.0.1", "127.1", "0.0.0.0", "[::1]", "http://127.0.0.1:5173/"])
def test_address_of_the_own_machine_is_refused_with_localhost(name: str) -> None:
    with pytest.raises(NotARootDomain, match="whitelist localhost"):
        root_in(name, allow_localhost=True)


def test_page_of_localhost_is_taken_as_localhost() -> None:
    assert root_in("http://localhost:5173/", allow_localhost=True) == "localhost"
    with pytest.raises(NotARootDomain, match="allow_localhost"):
        root_in("http://localhost:5173/")


@pytest.mark.parametrize("name", ["router", "printer.local", "foo.invalid", "app.internal-net"])
def test_name_under_no_known_suffix_is_refused(name: str) -> None:
    with pytest.raises(NotARootDomain, match="public suffix"):
        root_domain(name)


def test_localhost_is_a_root_only_by_setting() -> None:
    assert root_domain("LOCALHOST", allow_localhost=True) == "localhost"
    with pytest.raises(NotARootDomain, match="allow_localhost"):
        root_domain("localhost")


def test_setting_for_localhost_opens_nothing_else() -> None:
    for name in ("127.0.0.1", "app.localhost", "localhost.localdomain", "com"):
        with pytest.raises(NotARootDomain):
            root_domain(name, allow_localhost=True)


@given(st.text() | st.text("abcé.-_com uk@:/0", max_size=20), st.booleans())
def test_any_text_is_a_root_or_refused(name: str, allow_localhost: bool) -> None:
    try:
        root = root_domain(name, allow_localhost=allow_localhost)
    except NotARootDomain as refusal:
        root = refusal.suggestion
    assert root == "" or root_domain(root, allow_localhost=allow_localhost) == root


@given(st.lists(st.text("abc", min_size=1, max_size=3), max_size=3))
def test_suggested_root_covers_the_name_it_was_suggested_for(below: list[str]) -> None:
    name = ".".join([*below, "www", "example", "co", "uk"])
    with pytest.raises(NotARootDomain) as caught:
        root_domain(name)
    assert caught.value.suggestion in candidates(name)
