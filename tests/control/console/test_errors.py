"""What goes wrong is a page in the same layout that shows what to do next."""

import re
import threading
from typing import Any, cast

import pytest
from structlog.testing import capture_logs
from tests.control.console.site import OURS, PASSWORD, Browser, Site, words

from tollgate.control.console import render
from tollgate.control.console.forms import MAX_BYTES, MAX_FIELDS

NOWHERE = (
    "/console/nowhere",
    "/console/a/b/c",
    "/console/invitations",
    "/console/invitations/tgi_x/more",
    "/console/reset",
    "/console/logins",
    "/console/logins/log_1",
    "/console/device/elsewhere",
    "/console/oidc",
    "/console/style.css/x",
    "/console/sign-in/%2e%2e",
)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_unknown_path_is_a_page(browser: Browser, method: str) -> None:
    for path in NOWHERE:
        answer = browser.request(method, path, headers=OURS)
        assert answer.status_code == 404, path
        assert words(answer) == (
            "Not found There is no page at this address: check the link, or go to the start "
            "page. Go to the start page"
        )


def test_method_that_a_page_does_not_take_is_a_page(browser: Browser) -> None:
    for method, path, allow in (
        ("GET", "/console/sign-out", "POST"),
        ("GET", "/console/logins/log_1/end", "POST"),
        ("PUT", "/console/sign-in", "GET, HEAD, POST"),
        ("DELETE", "/console", "GET, HEAD"),
        ("POST", "/console/oidc/callback", "GET, HEAD"),
        ("POST", "/console/device/approved", "GET, HEAD"),
    ):
        answer = browser.request(method, path, headers=OURS)
        assert (answer.status_code, answer.headers["allow"]) == (405, allow), path
        assert "go to the start" in words(answer)


def test_form_over_the_bound_is_refused_and_nothing_of_it_is_repeated(browser: Browser) -> None:
    answer = browser.post("/console/sign-in", email="x" * MAX_BYTES, password="typed-secret")
    assert answer.status_code == 413
    assert "go back and shorten" in words(answer)
    assert "typed-secret" not in answer.text


@pytest.mark.parametrize("content", [b"email=%ff", b"\xff", b"&".join(b"f=1" for _ in range(MAX_FIELDS + 1))])
def test_form_that_cannot_be_read_is_refused(browser: Browser, content: bytes) -> None:
    headers = {**OURS, "Content-Type": "application/x-www-form-urlencoded"}
    answer = browser.request("POST", "/console/sign-in", content=content, headers=headers)
    assert answer.status_code == 400
    assert "go back and try again" in words(answer)


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=x", "text/plain", ""])
def test_body_that_is_no_form_is_refused(browser: Browser, kind: str) -> None:
    answer = browser.request("POST", "/console/sign-in", content=b"{}", headers={**OURS, "Content-Type": kind})
    assert answer.status_code == 415


SECRET, TYPED = "tgi_secret", "typed-secret"


class _Broken:
    """A service with a defect whose exception contains the typed text."""

    def __getattr__(self, name: str) -> Any:
        raise LookupError(SECRET, TYPED)


def test_defect_is_a_page_with_the_request_and_a_log_line_without_secrets(site: Site) -> None:
    site.plane.invitations = cast(Any, _Broken())
    with capture_logs() as lines:
        answer = site.browser().request("GET", f"/console/invitations/{SECRET}", headers={"X-Request-Id": "req-1"})
    assert answer.status_code == 500
    assert "contact the operator. Request req-1" in words(answer)
    (line,) = lines
    assert (line["page"], line["error"], line["id"]) == (
        "/console/invitations/{secret}",
        "LookupError",
        "req-1",
    )
    assert "invitation_page" in line["trace"]
    for text in (answer.text, str(line)):
        assert SECRET not in text
        assert TYPED not in text


def test_unavailable_store_is_a_page_that_advises_to_try_again(site: Site) -> None:
    site.account()
    browser = site.signed_in()
    site.lose_the_store()
    others = set(threading.enumerate())
    answer = browser.get("/console")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert "cannot reach its database now: try again" in words(answer)
    # As in tests/contract/conftest.py: a failed connection's thread outlives the answer.
    for thread in set(threading.enumerate()) - others:
        if not thread.name.startswith("asyncio_"):  # those of the loop's own pool stay
            thread.join(timeout=30)


def test_request_id_of_a_caller_is_escaped(site: Site) -> None:
    site.plane.invitations = cast(Any, _Broken())
    with capture_logs():
        answer = site.browser().request("GET", "/console/invitations/x", headers={"X-Request-Id": "<script>"})
    assert "<script>" not in answer.text


def test_style_sheet_is_named_by_its_content_and_may_be_kept(browser: Browser) -> None:
    address = browser.get("/console/sign-in").text.partition('rel="stylesheet" href="')[2].partition('"')[0]
    answer = browser.get(address)
    assert answer.headers["content-type"].startswith("text/css")
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert "prefers-color-scheme: dark" in answer.text


def test_pages_need_nothing_from_the_working_directory(
    site: Site, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.account()
    monkeypatch.chdir(tmp_path)
    assert site.signed_in().get("/console").status_code == 200


def test_pages_have_our_script_alone_and_load_nothing_from_elsewhere(site: Site) -> None:
    site.account()
    signed_in, signed_out = site.signed_in(), site.browser()
    shown = [
        *(
            signed_out.get(path)
            for path in ("/console/sign-in", "/console/sign-up", "/console/forgot", "/console/nope")
        ),
        *(signed_in.get(path) for path in ("/console", "/console/device")),
        signed_out.post("/console/sign-in", email="ada@example.com", password=PASSWORD + "x"),
    ]
    for answer in shown:
        assert re.findall(r"<script[^>]*>", answer.text) == [f'<script src="{render.SCRIPT.url}" defer>']
        assert "style=" not in answer.text
        for attribute in ('src="http', 'href="http', 'action="http'):
            assert attribute not in answer.text
