"""The OpenAPI document and its page: complete, exact, and nothing from elsewhere."""

import base64
import hashlib
import html
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from litestar.routes import HTTPRoute
from tests.control.api.caller import Api, Json
from tests.control.services.harness import BASE_URL

from tollgate.control.api import docs
from tollgate.control.api.errors import API_PROBLEMS
from tollgate.control.app import BASE, control_app
from tollgate.control.problems import ALL_PROBLEMS

# The contract, as a list: what the document must have, and nothing else.
OPERATIONS = """
getService              GET    /api/v1/service                                        public
getOpenApi              GET    /api/v1/openapi.json                                   public
getDocs                 GET    /api/v1/docs                                           public
startDeviceLogin        POST   /api/v1/oauth/device_authorization                     public
getAccessToken          POST   /api/v1/oauth/token                                    public
revokeLogin             POST   /api/v1/oauth/revoke                                   public
getOAuthMetadata        GET    /.well-known/oauth-authorization-server                public
getSelf                 GET    /api/v1/me
updateSelf              PATCH  /api/v1/me
deleteSelf              DELETE /api/v1/me
changeEmail             POST   /api/v1/me/email
confirmEmail            POST   /api/v1/me/email/confirm
changePassword          POST   /api/v1/me/password
listLogins              GET    /api/v1/me/logins
endLogin                DELETE /api/v1/me/logins/{login}
createPersonalToken     POST   /api/v1/me/tokens
listOwnAudit            GET    /api/v1/me/audit
getFactors              GET    /api/v1/me/factors
beginTotp               POST   /api/v1/me/factors/totp
confirmTotp             POST   /api/v1/me/factors/totp/confirm
endTotp                 POST   /api/v1/me/factors/totp/end
beginPasskey            POST   /api/v1/me/factors/passkeys/options
addPasskey              POST   /api/v1/me/factors/passkeys
removePasskey           DELETE /api/v1/me/factors/{factor}
listNetworks            GET    /api/v1/networks
listUpstreams           GET    /api/v1/operator/upstreams
listUpstreamHistory     GET    /api/v1/operator/upstreams/history
getProcesses            GET    /api/v1/operator/processes
runChecks               POST   /api/v1/operator/checks
listAllTeams            GET    /api/v1/operator/teams
getAnyTeam              GET    /api/v1/operator/teams/{name}
getUsageOfAnyTeam       GET    /api/v1/operator/teams/{name}/usage
getServiceUsage         GET    /api/v1/operator/usage
setTerms                PATCH  /api/v1/operator/teams/{name}
listNodes               GET    /api/v1/operator/nodes
createTeam              POST   /api/v1/teams
listTeams               GET    /api/v1/teams
getTeam                 GET    /api/v1/teams/{team}
updateTeam              PATCH  /api/v1/teams/{team}
deleteTeam              DELETE /api/v1/teams/{team}
listMembers             GET    /api/v1/teams/{team}/members
setRole                 PATCH  /api/v1/teams/{team}/members/{member}
removeMember            DELETE /api/v1/teams/{team}/members/{member}
createInvitation        POST   /api/v1/teams/{team}/invitations
listInvitations         GET    /api/v1/teams/{team}/invitations
revokeInvitation        DELETE /api/v1/teams/{team}/invitations/{invitation}
acceptInvitation        POST   /api/v1/invitations/accept
createToken             POST   /api/v1/teams/{team}/tokens
listTokens              GET    /api/v1/teams/{team}/tokens
getToken                GET    /api/v1/teams/{team}/tokens/{token}
updateToken             PATCH  /api/v1/teams/{team}/tokens/{token}
deleteToken             DELETE /api/v1/teams/{team}/tokens/{token}
getPlaygroundToken      POST   /api/v1/teams/{team}/playground
rotateToken             POST   /api/v1/teams/{team}/tokens/{token}/rotate
addDomain               POST   /api/v1/teams/{team}/domains
listDomains             GET    /api/v1/teams/{team}/domains
getDomain               GET    /api/v1/teams/{team}/domains/{domain}
updateDomain            PATCH  /api/v1/teams/{team}/domains/{domain}
removeDomain            DELETE /api/v1/teams/{team}/domains/{domain}
verifyDomain            POST   /api/v1/teams/{team}/domains/{domain}/verify
checkOrigin             GET    /api/v1/teams/{team}/domains/check
listLogs                GET    /api/v1/teams/{team}/logs
getLog                  GET    /api/v1/teams/{team}/logs/{entry}
exportLogs              GET    /api/v1/teams/{team}/logs/export/{format}
getUsage                GET    /api/v1/teams/{team}/usage
getTimeline             GET    /api/v1/teams/{team}/usage/timeline
getBilling              GET    /api/v1/teams/{team}/billing
updateBilling           PATCH  /api/v1/teams/{team}/billing
testWebhook             POST   /api/v1/teams/{team}/billing/test
rollWebhookSecret       POST   /api/v1/teams/{team}/billing/roll
listInvoices            GET    /api/v1/teams/{team}/invoices
getInvoice              GET    /api/v1/teams/{team}/invoices/{month}
listAudit               GET    /api/v1/teams/{team}/audit
exportAudit             GET    /api/v1/teams/{team}/audit/export
"""
LISTED = [line.split() for line in OPERATIONS.strip().splitlines()]


@pytest.fixture
def document(api: Api) -> Json:
    return api.get("/openapi.json", who=None)


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def nodes(value: Any) -> Iterator[Json]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from nodes(each)


def test_document_has_the_operations_of_the_contract_and_no_other(document: Json) -> None:
    found = {
        (each["operationId"], method.upper(), path, not each["security"])
        for path, method, each in operations(document)
    }
    assert found == {(name, method, path, bool(public)) for name, method, path, *public in LISTED}


def test_document_has_every_route_of_the_application(api: Api, document: Json) -> None:
    served = {
        (route.path_format, method.lower())
        for route in control_app(api.harness.plane).routes
        if isinstance(route, HTTPRoute) and route.path != "/" and not route.path.startswith("/console")
        for method in route.methods
        if method != "OPTIONS"
    }
    assert served == {(path, method) for path, method, _ in operations(document)}
    assert all(path.startswith((BASE, "/.well-known/")) for path, _ in served)


def test_every_operation_is_fully_described(document: Json) -> None:
    tags = {tag["name"] for tag in document["tags"]}
    for path, method, operation in operations(document):
        where = f"{method} {path}"
        assert operation["summary"], where
        assert set(operation["tags"]) < tags, where
        assert set(re.findall(r"\{(\w+)\}", path)) == {
            each["name"] for each in operation.get("parameters", []) if each["in"] == "path"
        }
        answers = operation["responses"]
        assert "500" in answers, where
        assert ("401" in answers) == ("503" in answers and "oauth" not in path) == bool(operation["security"]), (
            where
        )
        assert ("403" in answers) or "{team}" not in path, where
        assert any(status.startswith("2") for status in answers), where
        for status, answer in answers.items():
            assert "X-Request-Id" in answer["headers"], where
            if status.startswith(("4", "5")) and not (status == "400" and "oauth" in path):
                assert list(answer["content"]) == ["application/problem+json"], where
                assert answer["description"].startswith("- `"), where
        if "requestBody" in operation:
            for content in operation["requestBody"]["content"].values():
                assert "example" in content, where


def test_every_reference_resolves(document: Json) -> None:
    for node in nodes(document):
        if isinstance(node.get("$ref"), str):
            target: Any = document
            for part in node["$ref"].removeprefix("#/").split("/"):
                target = target[part]
            assert target


def test_every_schema_is_valid_and_accepts_its_examples(document: Json) -> None:
    schemas = document["components"]["schemas"]
    for name, schema in schemas.items():
        assert re.fullmatch(r"[A-Za-z]+", name)
        jsonschema_rs.meta.validate(schema)
    for _, _, operation in operations(document):
        for content in operation.get("requestBody", {}).get("content", {}).values():
            whole = {**content["schema"], "components": document["components"]}
            jsonschema_rs.Draft202012Validator(whole, validate_formats=True).validate(content["example"])


def test_every_reason_is_in_the_document(document: Json) -> None:
    words = "\n".join(
        answer["description"]
        for _, _, operation in operations(document)
        for answer in operation["responses"].values()
    )
    # The first is no operation's; the second is the console's.
    unsaid = {"method_not_allowed", "sign_up_closed"}
    for problem in (*ALL_PROBLEMS, *API_PROBLEMS):
        assert (f"`{problem.reason}`" in words) == (problem.reason not in unsaid), problem.reason


def test_document_names_no_other_host(document: Json) -> None:
    assert document["openapi"].startswith("3.1")
    assert document["servers"] == [{"url": BASE_URL}]
    text = str(document).replace("https://app.example.com", "")
    assert set(re.findall(r"https?://[\w.-]+", text)) == {BASE_URL}


def test_page_shows_every_operation_with_an_example(api: Api, document: Json) -> None:
    answer = api.request("GET", "/docs", who=None)
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    text = html.unescape(re.sub(r"<[^>]+>", "", answer.text))
    for path, method, operation in operations(document):
        assert f'id="{operation["operationId"]}"' in answer.text
        assert f"{method.upper()} {path}" in text
        assert operation["summary"] in text
        assert f"'{BASE_URL}{path}" in text
    for name in ("requests_per_second", "integer or null (1 to 1000000)", "Idempotency-Key", "`"):
        assert (name in text) == (name != "`"), name


def test_page_loads_no_resource_and_runs_no_script(api: Api) -> None:
    answer = api.request("GET", "/docs", who=None)
    style = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    assert len(style) == 1
    digest = base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode()
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    for word in ("<script", "src=", "url(", "@import", "style=", "<link", "<img", "<iframe"):
        assert word not in answer.text.lower(), word
    assert set(re.findall(r'href="([^"#]+)', answer.text)) == {"openapi.json"}


def test_anchors_of_the_page_resolve(api: Api) -> None:
    page = api.request("GET", "/docs", who=None).text
    names = re.findall(r'id="([^"]+)"', page)
    assert len(names) == len(set(names))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(names)


def test_page_names_every_form_of_an_answer(api: Api) -> None:
    page = api.request("GET", "/docs", who=None).text
    cells = re.findall(r'<h3 id="getInvoice">.*?<th scope="row">200</th><td>(.*?)</td>', page, re.DOTALL)
    assert cells == ['<a href="#shape-Invoice">Invoice</a>, or text/csv, text/html']


def test_media_types_are_written_as_http_writes_them(document: Json) -> None:
    types = {
        each
        for _, _, operation in operations(document)
        for answer in operation["responses"].values()
        for each in answer.get("content", {})
    }
    assert all(re.fullmatch(r"[a-z]+/[a-z0-9.+-]+", each) for each in types), types
    assert b"MediaType." not in docs.page(document)
