"""Secrets: after a full run none is found in clear, neither in the store, nor in a log, nor in a later answer."""

from __future__ import annotations

import re
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from parts.anvil import anvil
from parts.raw_http import JSON, call
from parts.tollgate import TOLLGATE, Books, Gateway, bearer, serving, write_settings
from parts.tool import Ran, admin
from parts.upstream import upstream

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

# Of an upstream, as providers put it into their addresses.
KEY = "key0f4n0de9s3cret"
PASSWORD, CHANGED, RESET = "correct horse battery", "another horse battery", "a third horse battery"
WRONG = "a guess that is wrong"
SECRET = re.compile(rb"tg[a-z]?_[0-9A-Za-z]{38}")


class Walk:
    """One person's way through everything that gives or takes a secret. Remembers all of them."""

    def __init__(self, gateway: Gateway, config: Path) -> None:
        self.gateway = gateway
        self.config = config
        self.secrets: set[str] = {PASSWORD, CHANGED, RESET, WRONG, KEY}
        self.access = ""

    @contextmanager
    def browser(self) -> Iterator[httpx.Client]:
        headers = {"Sec-Fetch-Site": "same-origin"}
        with httpx.Client(base_url=self.gateway.base_url, headers=headers, trust_env=False, timeout=20) as client:
            yield client

    def kept(self, secret: str) -> str:
        """Remember a secret that was just shown."""
        assert secret
        self.secrets.add(secret)
        return secret

    def sign_in(self, browser: httpx.Client, password: str) -> int:
        form = {"email": "ada@example.com", "password": password, "next": "/console"}
        answer = browser.post("/console/sign-in", data=form)
        for value in browser.cookies.values():
            self.kept(value)
        return answer.status_code

    def log_tool_in(self, browser: httpx.Client) -> dict[str, Any]:
        started = browser.post("/api/v1/oauth/device_authorization", data={"client_id": "tollgate-cli"}).json()
        self.kept(started["device_code"])
        self.kept(started["user_code"])
        approved = browser.post("/console/device", data={"user_code": started["user_code"], "act": "approve"})
        assert approved.status_code == 303, approved.text
        grant = "urn:ietf:params:oauth:grant-type:device_code"
        form = {"grant_type": grant, "device_code": started["device_code"], "client_id": "tollgate-cli"}
        return self.tokens(browser.post("/api/v1/oauth/token", data=form))

    def tokens(self, answer: httpx.Response) -> dict[str, Any]:
        given: dict[str, Any] = answer.json()
        assert answer.status_code == 200, given
        self.kept(given["refresh_token"])
        self.access = self.kept(given["access_token"])
        return given

    def api(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        with self.browser() as client:
            return client.request(method, f"/api/v1{path}", json=body, headers={**bearer(self.access), **headers})

    def create(self, path: str, body: Any, member: str = "secret") -> dict[str, Any]:
        """Create something with a secret, twice by the same key: the second answer must be without."""
        key = {"Idempotency-Key": f"walk-{path}"}
        answer = self.api("POST", path, body, **key)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        self.kept(made[member])
        again = self.api("POST", path, body, **key)
        assert again.status_code == 201
        assert again.json()[member] is None
        return made


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Walk, Path]]:
    folder = tmp_path_factory.mktemp("secrets")
    with (
        upstream() as node,
        serving(
            folder,
            {
                "eth/mainnet": [
                    {"url": f"{node.url}/v2/{KEY}"},
                    # Nothing listens there, so each logs an error.
                    {"url": f"http://127.0.0.1:1/{KEY}?key={KEY}", "ws_url": f"ws://127.0.0.1:1/{KEY}"},
                ]
            },
            {"logging": {"level": "debug"}},
        ) as gateway,
    ):
        walk = Walk(gateway, folder / "tollgate.toml")
        run(walk)
        yield walk, folder


def run(walk: Walk) -> None:
    made = admin(
        walk.config, "create-account", "ada@example.com", "--team", "acme", "--password-stdin", typed=PASSWORD
    )
    assert made.code == 0, made.err
    with walk.browser() as browser:
        assert walk.sign_in(browser, WRONG) == 401
        assert walk.sign_in(browser, PASSWORD) == 303
        given = walk.log_tool_in(browser)
        form = {
            "grant_type": "refresh_token",
            "refresh_token": given["refresh_token"],
            "client_id": "tollgate-cli",
        }
        walk.tokens(browser.post("/api/v1/oauth/token", data=form))
    token = walk.create("/teams/acme/tokens", {"name": "ci", "allow_in_url": True})
    successor = walk.create(f"/teams/acme/tokens/{token['id']}/rotate", {})
    walk.create("/me/tokens", {"name": "robot"})
    invited = walk.create("/teams/acme/invitations", {"email": "grace@example.com", "role": "viewer"}, "link")
    walk.kept(invited["link"].rpartition("/")[2])
    assert walk.api("POST", "/teams/acme/domains", {"domain": "example.com"}).status_code == 201
    call_the_chain(walk, successor["secret"])
    assert walk.api("POST", "/me/password", {"current": PASSWORD, "new": CHANGED}).status_code == 204
    reset_by_link(walk)


def call_the_chain(walk: Walk, secret: str) -> None:
    """Use the token in every place where it could be logged, rightly and wrongly."""
    body = call("eth_chainId")
    assert walk.gateway.exchange(body, token=secret).status == 200
    assert walk.gateway.exchange(body, path=f"/x/eth/mainnet/{secret}").status == 200
    assert walk.gateway.exchange(body, path=f"/x/eth/nowhere/{secret}").status == 404
    assert walk.gateway.exchange(b"{", path=f"/x/eth/mainnet/{secret}").status == 400
    assert walk.gateway.exchange(body, path=f"/x/eth/mainnet?token={secret}", headers=JSON).status == 401
    assert walk.api("GET", f"/teams/{secret}/tokens").status_code == 403
    assert walk.api("GET", f"/{secret}").status_code == 404


def reset_by_link(walk: Walk) -> None:
    printed = admin(walk.config, "reset-link", "ada@example.com")
    assert printed.code == 0
    link = walk.kept(printed.out.strip())
    secret = walk.kept(link.rpartition("/")[2])
    with walk.browser() as browser:
        form = {"password": RESET, "again": RESET}
        assert browser.post(f"/console/reset/{secret}", data=form).status_code == 303
        assert walk.sign_in(browser, RESET) == 303
        walk.log_tool_in(browser)


def command(config: Path, *words: str) -> Ran:
    ended = subprocess.run(
        [TOLLGATE, *words, "--config", str(config)], capture_output=True, text=True, timeout=60, check=False
    )
    return Ran(ended.returncode, ended.stdout, ended.stderr)


def found(walk: Walk, text: bytes) -> set[str]:
    return {secret for secret in walk.secrets if secret.encode() in text}


def test_the_walk_met_every_kind_of_secret(walked: tuple[Walk, Path]) -> None:
    walk, _ = walked
    prefixes = {secret.partition("_")[0] for secret in walk.secrets if SECRET.fullmatch(secret.encode())}
    assert prefixes == {"tg", "tga", "tgr", "tgp", "tgs", "tgd", "tgi", "tgl"}


def test_the_store_holds_no_secret_in_clear(walked: tuple[Walk, Path]) -> None:
    walk, folder = walked
    files = [file for file in (folder / "data").rglob("*") if file.is_file()]
    assert {"control.db", "control.db-wal"} <= {file.name for file in files}
    for file in files:
        content = file.read_bytes()
        assert found(walk, content) == set(), file.name
        assert SECRET.search(content) is None, file.name
        assert PASSWORD.encode() not in content


def test_the_logs_hold_no_secret(walked: tuple[Walk, Path]) -> None:
    walk, _ = walked
    output = walk.gateway.program.err.read_bytes() + walk.gateway.program.out.read_bytes()
    assert output
    assert found(walk, output) == set()
    assert SECRET.search(output) is None


def test_no_later_answer_holds_a_secret(walked: tuple[Walk, Path]) -> None:
    walk, _ = walked
    paths = [
        "/me", "/me/logins", "/me/audit", "/teams", "/teams/acme", "/teams/acme/members",
        "/teams/acme/invitations", "/teams/acme/tokens", "/teams/acme/domains", "/teams/acme/audit", "/service",
    ]  # fmt: skip
    for path in paths:
        answer = walk.api("GET", path)
        assert answer.status_code == 200, (path, answer.text)
        assert found(walk, answer.content) == set(), path
        assert SECRET.search(answer.content) is None, path
    for token in walk.api("GET", "/teams/acme/tokens").json()["items"]:
        assert found(walk, walk.api("GET", f"/teams/acme/tokens/{token['id']}").content) == set()
    metrics = httpx.get(walk.gateway.metrics_url, trust_env=False, timeout=20).content
    assert SECRET.search(metrics) is None
    assert found(walk, metrics) == set()


def test_the_key_of_an_upstream_is_shown_nowhere(walked: tuple[Walk, Path]) -> None:
    walk, _ = walked
    assert admin(walk.config, "operator", "ada@example.com").code == 0
    for path in ("upstreams", "upstreams/history", "processes", "nodes", "teams"):
        answer = walk.api("GET", f"/operator/{path}")
        assert answer.status_code == 200, (path, answer.text)
        assert KEY.encode() not in answer.content, path
    with walk.browser() as browser:
        walk.sign_in(browser, RESET)
        for path in ("operator", "teams/acme/endpoints"):
            answer = browser.get(f"/console/{path}")
            assert (answer.status_code, KEY in answer.text) == (200, False), path
    for words, code in (
        (("upstreams",), 0),
        (("upstreams", "--json"), 0),
        (("config", "show"), 0),
        (("config", "show", "--json"), 0),
        (("config", "check", "--online"), 1),
        (("doctor",), 0),
    ):
        ran = command(walk.config, *words)
        assert (ran.code, KEY in ran.out + ran.err) == (code, False), (words, ran)


def test_tokens_under_either_pepper_work_while_it_is_replaced_and_later_only_new_ones(tmp_path: Path) -> None:
    def statuses(gateway: Gateway, *secrets: str) -> list[int]:
        return [gateway.exchange(call("eth_chainId"), token=secret).status for secret in secrets]

    # A process: while a thread of ours answers, `serving` must not fork.
    with anvil(tmp_path) as node:
        networks = {"eth/mainnet": [node.url]}
        config, books = write_settings(tmp_path, networks), Books(tmp_path / "data")
        team = books.team()
        old, _ = books.token(team)
        assert admin(config, "rotate-pepper").code == 0
        with serving(tmp_path, networks) as gateway:
            new, _ = gateway.books.token(team)
            assert statuses(gateway, old, new, old) == [200, 200, 200]
        assert admin(config, "rotate-pepper", "--finish", "--force").code == 0
        with serving(tmp_path, networks) as gateway:
            assert statuses(gateway, old, new) == [401, 200]
