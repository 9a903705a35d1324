"""Signing in with a provider that lies, stalls or floods, and with callbacks that a browser did not begin."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from parts.memory import within_budget
from parts.ports import LOOPBACK
from parts.processes import eventually
from parts.tollgate import Gateway, serving
from tollgate.control.oidc import MAX_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

EMAIL = "ada@example.com"
KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
OTHER_KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
Script = Callable[[BaseHTTPRequestHandler], None]
DISCOVERY, KEYS, TOKEN, USERINFO = "/.well-known/openid-configuration", "/keys", "/token", "/me"


class Provider(ThreadingHTTPServer):
    """Answers by the script, or as an honest provider."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__((LOOPBACK, 0), _Answering)
        self.issuer = f"http://{LOOPBACK}:{self.server_address[1]}"
        self.instead: dict[str, Script] = {}
        self.reset()

    def reset(self) -> None:
        """Become honest again."""
        self.instead.clear()
        self.metadata: dict[str, Any] = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/auth",
            "token_endpoint": self.issuer + TOKEN,
            "jwks_uri": self.issuer + KEYS,
            "userinfo_endpoint": self.issuer + USERINFO,
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
        }
        self.keys: list[dict[str, Any]] = [dict(KEY.as_dict(private=False))]
        self.claims: dict[str, Any] = {}
        self.nonce = ""
        self.sign: Callable[[dict[str, Any]], str] = signed(KEY)

    def document(self, path: str) -> object:
        """What an honest provider answers, with the claims that were set."""
        now = int(time.time())
        usual = {"iss": self.issuer, "sub": "1", "aud": "tollgate", "iat": now, "exp": now + 300}
        named = {"nonce": self.nonce, "email": EMAIL, "email_verified": True, "name": "Ada"}
        claims = {name: value for name, value in {**usual, **named, **self.claims}.items() if value is not None}
        if path == TOKEN:
            return {"access_token": "at", "token_type": "Bearer", "id_token": self.sign(claims)}
        return {DISCOVERY: self.metadata, KEYS: {"keys": self.keys}, USERINFO: {"sub": "1"}}[path]


class _Answering(BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", "0")))
        if self.path in self.server.instead:
            with suppress(OSError):
                self.server.instead[self.path](self)
            self.close_connection = True
            return
        body = json.dumps(self.server.document(self.path)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


def signed(key: RSAKey, alg: str = "RS256") -> Callable[[dict[str, Any]], str]:
    return lambda claims: jwt.encode({"alg": alg, "kid": key.kid}, claims, key, algorithms=[alg])


def by_hand(alg: str, secret: bytes | None) -> Callable[[dict[str, Any]], str]:
    """A token that no library makes."""

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    def sign(claims: dict[str, Any]) -> str:
        text = f"{part(json.dumps({'alg': alg, 'kid': 'one'}).encode())}.{part(json.dumps(claims).encode())}"
        return f"{text}.{part(b'' if secret is None else hmac.digest(secret, text.encode(), hashlib.sha256))}"

    return sign


@contextmanager
def running_provider() -> Iterator[Provider]:
    with Provider() as provider:
        thread = threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield provider
        finally:
            provider.shutdown()
            thread.join()


@contextmanager
def serving_with_provider(folder: Path) -> Iterator[tuple[Gateway, Provider]]:
    with running_provider() as provider:
        settings: dict[str, dict[str, object]] = {
            "server": {"trusted_proxies": ["127.0.0.0/8"]},
            "oidc": {"issuer": provider.issuer, "client_id": "tollgate", "client_secret": "s3cret"},
        }
        with serving(folder, {"eth/mainnet": ["http://127.0.0.1:9"]}, settings) as gateway:
            gateway.books.account(EMAIL)
            with within_budget(gateway), within_budget(gateway, processes="tg-control"):
                yield gateway, provider
            assert "Traceback" not in gateway.program.err.read_text()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, Provider]]:
    with serving_with_provider(tmp_path_factory.mktemp("provider")) as made:
        yield made


@pytest.fixture(autouse=True)
def honest(both: tuple[Gateway, Provider]) -> Iterator[None]:
    yield
    both[1].reset()


@contextmanager
def browser(gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.base_url, trust_env=False, timeout=30) as client:
        yield client


def begin(client: httpx.Client, provider: Provider, back: str = "/console/account") -> str:
    """Go to the provider; the state that it would give back."""
    answer = client.get("/console/oidc/start", params={"next": back})
    assert answer.status_code == 303, answer.text
    assert answer.headers["location"].startswith(provider.issuer + "/auth?")
    query = parse_qs(urlsplit(answer.headers["location"]).query)
    provider.nonce = query["nonce"][0]
    return query["state"][0]


def come_back(client: httpx.Client, **params: str) -> httpx.Response:
    return client.get("/console/oidc/callback", params=params)


def is_in(client: httpx.Client) -> bool:
    return client.get("/console/account").status_code == 200


def test_honest_sign_in(both: tuple[Gateway, Provider]) -> None:
    gateway, provider = both
    with browser(gateway) as client:
        state = begin(client, provider)
        answer = come_back(client, state=state, code="c")
        assert (answer.status_code, answer.headers["location"]) == (303, "/console/account")
        assert is_in(client)
        # Once: neither the state nor the cookie is good again.
        assert come_back(client, state=state, code="c").status_code == 400


def test_callback_that_the_browser_did_not_begin(both: tuple[Gateway, Provider]) -> None:
    gateway, provider = both
    with browser(gateway) as attacker, browser(gateway) as victim:
        state = begin(attacker, provider)
        # The attacker's code in the victim's browser, which started no sign-in, or another one.
        assert come_back(victim, state=state, code="c").status_code == 400
        begin(victim, provider)
        for given in (
            state,
            "",
            state[:-1],
            state + "=",
            "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
        ):
            assert come_back(victim, state=given, code="c").status_code == 400
            begin(victim, provider)
        assert not is_in(victim)


@pytest.mark.parametrize(
    "back",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "/console/../../x",
        "/console\r\nX: y",
        "/%09/evil.example",
        "javascript:alert(1)",
    ],
)
def test_way_back_leads_to_no_other_site(both: tuple[Gateway, Provider], back: str) -> None:
    gateway, provider = both
    with browser(gateway) as client:
        state = begin(client, provider, back)
        assert come_back(client, state=state, code="c").headers["location"] == "/console"
        # The same in a forged cookie.
        state = begin(client, provider)
        (cookie,) = (each for each in client.cookies.jar if each.name == "tollgate-oidc")
        kept = json.loads(base64.urlsafe_b64decode(str(cookie.value) + "=="))
        kept[3] = back
        value = base64.urlsafe_b64encode(json.dumps(kept).encode()).rstrip(b"=").decode()
        client.cookies.set("tollgate-oidc", value, domain=cookie.domain, path=cookie.path)
        assert come_back(client, state=state, code="c").headers["location"] == "/console"


WRONG: dict[str, list[Any]] = {
    "nonce": [None, "", "other", [], {}, True],
    "iss": [None, "", "https://evil.example", [], {}, 7],
    "aud": [None, "", "other", [], ["other"], {}, 7, [{}], [["tollgate"]]],
    "azp": ["other", 7],
    "exp": [None, 0, "tomorrow", [], {}, True, -1e400, "9" * 400],
    "iat": [None, "now", {}, [], 1e400, 4e9],
    "nbf": [4e9, "later", {}, []],
    "sub": [None, "", 7, {}, [], "x" * 300],
    "at_hash": ["other", 7],
}
FORGED: list[tuple[str, dict[str, Any], Any]] = [
    ("none", {}, by_hand("none", None)),
    ("None", {}, by_hand("None", None)),
    ("HS256 with the public key", {}, by_hand("HS256", KEY.as_pem(private=False))),
    ("HS256 with the client secret", {}, by_hand("HS256", b"s3cret")),
    ("RS256 unsigned", {}, by_hand("RS256", None)),
    ("another key", {}, signed(OTHER_KEY)),
    *[
        (f"{name} {value!r}"[:60], {name: value}, signed(KEY))
        for name, values in WRONG.items()
        for value in values
    ],
]


@pytest.mark.parametrize(("claims", "sign"), [each[1:] for each in FORGED], ids=[each[0] for each in FORGED])
def test_statement_that_is_not_the_providers(
    both: tuple[Gateway, Provider], claims: dict[str, Any], sign: Any
) -> None:
    gateway, provider = both
    with browser(gateway) as client:
        state = begin(client, provider)
        provider.claims, provider.sign = claims, sign
        answer = come_back(client, state=state, code="c")
        assert answer.status_code == 400
        assert not is_in(client)


# ---- answers without an end, and without a beginning


def endless(start: bytes, piece: bytes) -> Script:
    """An answer that goes on until the connection ends."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(start)
        for _ in range((64 << 20) // len(piece)):
            handler.wfile.write(piece)

    return answer


HEAD = b"HTTP/1.1 200 OK\r\n"
WAYS = {
    "body": endless(HEAD + b"Content-Length: 999999999\r\n\r\n", b"[" * 65_536),
    "chunks": endless(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n[\r\n" * 8_192),
    "head": endless(HEAD, b"X-A: " + b"a" * 60_000 + b"\r\n"),
    "many headers": endless(HEAD, b"a: b\r\n" * 8_192),
    "one line": endless(HEAD + b"X-A: ", b"a" * 65_536),
    "extension": endless(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;", b"a" * 65_536),
    "trailers": endless(HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n" * 8_192),
    "interim": endless(b"", b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n" * 1_000),
}


@pytest.mark.parametrize(
    ("path", "way"),
    [(path, way) for path in (TOKEN, USERINFO) for way in WAYS.values()],
    ids=[f"{way} {path}" for path in (TOKEN, USERINFO) for way in WAYS],
)
def test_answers_of_the_provider_without_an_end(both: tuple[Gateway, Provider], path: str, way: Script) -> None:
    gateway, provider = both
    with browser(gateway) as client:
        state = begin(client, provider)
        # So that the rest is looked for at the provider.
        provider.claims = {"email": None}
        provider.instead[path] = way
        answer = come_back(client, state=state, code="c")
        assert answer.status_code == 400
        # It is ended by its size, not by the deadline.
        assert "in time" not in answer.text
        assert not is_in(client)


def test_descriptions_without_an_end(tmp_path: Path) -> None:
    with serving_with_provider(tmp_path) as (gateway, provider), browser(gateway) as client:
        for path in (DISCOVERY, KEYS):
            for way in WAYS.values():
                provider.instead[path] = way
                answer = client.get("/console/oidc/start")
                assert answer.status_code == 502
                assert "provider" in answer.text
            provider.reset()
        assert begin(client, provider)


def test_silent_provider_leaves_room_for_others(both: tuple[Gateway, Provider]) -> None:
    gateway, provider = both
    waiting, ended = threading.Semaphore(0), threading.Event()

    def silent(handler: BaseHTTPRequestHandler) -> None:
        waiting.release()
        ended.wait(60)

    # What a browser keeps is no secret: anybody can come back without having been there.
    kept = base64.urlsafe_b64encode(json.dumps(["s", "n", "v", "/console"]).encode()).rstrip(b"=").decode()

    def attack(number: int) -> str:
        headers = {"X-Forwarded-For": f"198.51.100.{number % 25}", "Cookie": f"tollgate-oidc={kept}"}
        query = {"state": "s", "code": "c"}
        with browser(gateway) as client:
            return client.get("/console/oidc/callback", params=query, headers=headers).text

    with browser(gateway) as client, ThreadPoolExecutor(100) as pool:
        begin(client, provider)
        provider.instead[TOKEN] = silent
        attacks = [pool.submit(attack, number) for number in range(100)]
        for _ in range(MAX_AT_ONCE):
            assert waiting.acquire(timeout=20)
        # The others were refused at once: those that wait are few, and everybody else has a place.
        eventually(lambda: sum(each.done() for each in attacks) >= 100 - MAX_AT_ONCE, what="the refusals")
        assert client.get("/console/sign-in", headers={"X-Forwarded-For": "203.0.113.1"}).status_code == 200
        assert client.get("/console/oidc/start").status_code == 303
        ended.set()
    # How many: on a slow machine the first have given up before the last have come.
    assert any("Too many sign-ins wait" in each.result() for each in attacks)
