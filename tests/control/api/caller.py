"""The API as its callers see it, in-process, over the harness of the services' tests.

Every answer is held against the OpenAPI document on the way: its status must be foreseen, its body must fit the
schema, and the headers that the document promises must be there.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import httpx
import jsonschema_rs
import msgspec
from litestar import Litestar
from tests.control.services.harness import BASE_URL, VISIT, Harness

from tollgate.control.api import oauth
from tollgate.control.api.rates import Rates
from tollgate.control.app import api_router, assembled
from tollgate.control.plane import ControlPlane
from tollgate.control.services.logins import Secrets
from tollgate.settings.model import LimitSettings, Settings

Json = dict[str, Any]

BASE = "/api/v1"
ADDRESS = "192.0.2.7"
REQUEST_ID = "req-0123456789abcdef"
# Not in every answer of its operation.
OPTIONAL_HEADERS = {"idempotency-replayed"}


@functools.cache
def api_app() -> tuple[Litestar, Json, Description]:
    """The application over `state.plane`, its document and what that promises; made once, which takes a while."""
    plane = cast("ControlPlane", SimpleNamespace(base_url=BASE_URL, settings=Settings()))
    app = assembled(plane, [api_router(), oauth.metadata])
    document = msgspec.json.decode(app.state.openapi_json)
    return app, document, Description(document)


class Api:
    """A client; `who` is one of the harness's people, with a login of the tool."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self._secrets: dict[str, tuple[Secrets, float]] = {}
        self.app, self.document, self._description = api_app()
        self.app.state.plane = harness.plane
        self.app.state.rates = Rates()
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(cast("Any", self.app), client=(ADDRESS, 50_000)), base_url=BASE_URL
        )

    def close(self) -> None:
        self.harness.do(self._client.aclose())

    def limit(self, credential: int = 1_000_000, address: int = 1_000_000) -> None:
        """Let so many requests a minute pass from here on."""
        limits = LimitSettings(api_per_minute=credential, api_address_per_minute=address)
        self.harness.plane.change(msgspec.structs.replace(self.harness.plane.settings, limits=limits))

    def secrets(self, who: str) -> Secrets:
        """The secrets of a person's login with the tool."""
        given, until = self._secrets.get(who, (None, 0.0))
        now = self.harness.clock.now
        if given is None or now >= until:
            account = self.harness.account(who)
            logins = self.harness.plane.logins
            given = self.harness.write(lambda records: logins.issue(records, VISIT, account, "laptop", now))
            self._secrets[who] = given, now + given.expires_in
        return given

    def login_id(self, who: str) -> str:
        """The id of a person's login with the tool."""
        found: str = self.request("GET", "/me", who=who).json()["login"]["id"]
        return found

    def request(
        self,
        method: str,
        path: str,
        *,
        who: str | None = "owner",
        token: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        **more: Any,
    ) -> httpx.Response:
        """Send a request as one of the harness's people, with a token, or without a credential."""
        if who is not None and token is None:
            token = self.secrets(who).access
        return self.harness.do(self.send(method, path, token=token, headers=headers, **more))

    async def send(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        **more: Any,
    ) -> httpx.Response:
        """Send it, from within the loop."""
        sent: dict[str, str | bytes] = {
            "X-Request-Id": REQUEST_ID,
            **({"Authorization": f"Bearer {token}"} if token else {}),
        }
        target = path if path.startswith("/.well-known") else BASE + path
        whole = [(name.encode(), _bytes(value)) for name, value in {**sent, **(headers or {})}.items()]
        answer = await self._client.request(method, target, headers=whole, **more)
        assert answer.headers["X-Request-Id"] == REQUEST_ID
        self._description.check(method, target.partition("?")[0], answer)
        return answer

    def get(self, path: str, **more: Any) -> Json:
        """What is read at a path."""
        answer = self.request("GET", path, **more)
        assert answer.status_code == 200, answer.text
        return shown(answer)

    def make(self, path: str, body: Json | None = None, **more: Any) -> Json:
        """What is created at a path."""
        answer = self.request("POST", path, json=body, **more)
        assert answer.status_code == 201, answer.text
        return shown(answer)

    def form(self, path: str, **form: str) -> httpx.Response:
        """Send a form without a credential."""
        return self.request("POST", path, who=None, data=form)

    def logged_in(self, who: str) -> Secrets:
        """Log the tool in as a person, by the device flow."""
        started = self.form("/oauth/device_authorization", client_id="tollgate-cli", machine="ada@laptop").json()
        self.harness.do(self.harness.plane.devices.approve(self.harness.actor(who), started["user_code"]))
        grant = "urn:ietf:params:oauth:grant-type:device_code"
        given = self.form(
            "/oauth/token", grant_type=grant, client_id="tollgate-cli", device_code=started["device_code"]
        ).json()
        return Secrets(given["access_token"], given["refresh_token"], given["expires_in"])


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


class Description:
    """What the document promises of answers."""

    def __init__(self, document: Json) -> None:
        self._document = document
        self._paths = {path: re.compile(re.sub(r"\{\w+\}", "[^/]+", path)) for path in document["paths"]}
        self._validators: dict[str, Any] = {}

    def operation(self, method: str, path: str) -> Json | None:
        """The operation that a request is for."""
        # A path without parameters goes before one with.
        for template in sorted(self._paths, key=lambda each: each.count("{")):
            if self._paths[template].fullmatch(path):
                found: Json | None = self._document["paths"][template].get(method.lower())
                return found
        return None

    def check(self, method: str, path: str, answer: httpx.Response) -> None:
        """Check an answer against the document."""
        operation = self.operation(method, path)
        if operation is None:
            return
        described = operation["responses"].get(str(answer.status_code))
        assert described is not None, f"{method} {path} answered {answer.status_code}: {answer.text}"
        for name in described["headers"]:
            assert name in answer.headers or name.lower() in OPTIONAL_HEADERS, (name, answer.headers)
        content = described.get("content", {})
        if not content:
            assert answer.content == b"", answer.text
            return
        media_type = answer.headers["Content-Type"].partition(";")[0]
        assert media_type in content, (media_type, list(content))
        if media_type.endswith(("/json", "+json")):
            self._validator(content[media_type]["schema"]).validate(answer.json())

    def _validator(self, schema: Json) -> Any:
        name = str(schema)
        if name not in self._validators:
            whole = {**_exact(schema), "components": _exact(self._document["components"])}
            self._validators[name] = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
        return self._validators[name]


def _exact(schema: Any) -> Any:
    """The schema with nothing more allowed than it names: an answer must not show what is not described."""
    if isinstance(schema, list):
        return [_exact(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "properties" in schema else {}
    return {**closed, **{name: _exact(value) for name, value in schema.items()}}


def shown(answer: httpx.Response) -> Json:
    """The object in an answer."""
    body: Json = answer.json()
    return body


def reason(answer: httpx.Response) -> tuple[int, str]:
    """The status and the reason of a problem, whose form is checked as well."""
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.headers["Cache-Control"] == "no-store"
    body = answer.json()
    assert body["type"] == "about:blank"
    assert body["status"] == answer.status_code
    assert body["request_id"] == REQUEST_ID
    assert body["title"]
    assert body["detail"].strip()
    return answer.status_code, body["reason"]
