"""schemathesis over a running service: no answer is a defect, and none lies outside of the OpenAPI document.

Every operation is tried. The examples of the document, the edges of its schemas and random data go through the
public port, with ids of real things among the random ones. Two passes: programs have a personal access token; what
only a person may do, and what may end the login itself, is tried with a login of the tool.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import Status, events, from_schema

from parts.dns import nameserver
from parts.tollgate import serving
from parts.tool import admin
from parts.visitor import visitor
from tollgate.core.people import Account, Member

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tollgate.store.base import Repositories

pytestmark = pytest.mark.e2e

EMAIL, PASSWORD, TEAM = "ada@example.com", "correct horse battery", "acme"
EXAMPLES = 12
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)
# What a personal access token may not do, or what may end the login itself.
IN_PERSON = ["createPersonalToken", "changePassword", "changeEmail", "confirmEmail", "endLogin"]
# What random data cannot bring about: an approved login, a proof, a password, another's invitation, a call that is
# logged, a span of time that is none too long, the name or address of what is deleted, a second factor.
NEVER_GRANTED = {"getOpenApi", "getAccessToken", "verifyDomain", "changePassword", "acceptInvitation"}
NEVER_GRANTED |= {"getLog", "exportLogs", "deleteTeam", "deleteSelf", "changeEmail", "confirmEmail"}
NEVER_GRANTED |= {"beginTotp", "confirmTotp", "endTotp", "beginPasskey", "addPasskey", "removePasskey"}
# What operators alone may do; the person who calls is none.
NEVER_GRANTED |= {"getProcesses", "listAllTeams", "listNodes", "listUpstreamHistory", "listUpstreams", "runChecks"}
NEVER_GRANTED |= {"setTerms", "getAnyTeam", "getUsageOfAnyTeam", "getServiceUsage"}
# Things of each kind, so that some are left when others were deleted.
THINGS = 12


@dataclass(frozen=True)
class Service:
    """A running service with a team that has some of everything."""

    base_url: str
    tool: str
    personal: str
    ids: dict[str, list[str]]


@contextmanager
def filled(folder: Path) -> Iterator[Service]:
    """Run a service, and fill it through its API."""
    networks: dict[str, list[str]] = {"eth/mainnet": ["http://127.0.0.1:9"]}
    with ExitStack() as stack:
        # It knows no name: that there is no proof is known at once.
        dns = stack.enter_context(nameserver(folder / "dns"))
        # Random data comes fast, from one address.
        limits = {"api_per_minute": 1_000_000, "api_address_per_minute": 1_000_000}
        settings: dict[str, dict[str, object]] = {
            "whitelist": {"resolvers": [dns.address]},
            "limits": dict(limits),
        }
        gateway = stack.enter_context(serving(folder, networks, settings))
        person = stack.enter_context(visitor(gateway.base_url))
        made = admin(
            folder / "tollgate.toml", "create-account", EMAIL, "--team", TEAM, "--password-stdin", typed=PASSWORD
        )
        assert made.code == 0, made.err
        assert person.sign_in(EMAIL, PASSWORD).status_code == 303
        tool = person.log_tool_in()["access_token"]
        headers = {"Authorization": f"Bearer {tool}"}
        gateway.books.do(_join)
        with httpx.Client(base_url=f"{gateway.base_url}/api/v1", headers=headers, trust_env=False) as api:
            yield Service(gateway.base_url, tool, _make(api, "/me/tokens", name="ci")["secret"], _fill(api))


async def _join(records: Repositories) -> None:
    """Let others belong to the team, so that there is a member to remove."""
    team = await records.teams.find(name=TEAM)
    assert team is not None
    for number in range(THINGS):
        account = Account(f"acc_other{number}", f"other-{number}@example.com", time.time())
        await records.accounts.add(account)
        await records.members.add(Member(f"mem_other{number}", team.id, account.id, "viewer", time.time()))


def _make(api: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = api.post(path, json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def _fill(api: httpx.Client) -> dict[str, list[str]]:
    team = f"/teams/{TEAM}"
    numbers = range(THINGS)
    return {
        "team": [api.get(team).json()["id"]],
        "token": [_make(api, f"{team}/tokens", name=f"token-{number}")["id"] for number in numbers],
        "domain": [_make(api, f"{team}/domains", domain=f"domain-{number}.com")["id"] for number in numbers],
        "invitation": [
            _make(api, f"{team}/invitations", email=f"guest-{number}@example.com", role="viewer")["id"]
            for number in numbers
        ],
        "member": [row["id"] for row in api.get(f"{team}/members").json()["items"]],
        "login": [_make(api, "/me/tokens", name=f"login-{number}")["id"] for number in numbers],
    }


def walk(service: Service, token: str, only: Sequence[str] = (), but: Sequence[str] = ()) -> dict[str, set[int]]:
    """Try operations; return what they answered. Every failure is printed, with how to repeat it."""
    schema = schemathesis.openapi.from_url(
        f"{service.base_url}/api/v1/openapi.json", config=_config(service, token), timeout=30
    )
    chosen = schema.include(operation_id=list(only)) if only else schema.exclude(operation_id=list(but))
    failures: list[str] = []
    answers: dict[str, set[int]] = {}
    for event in from_schema(chosen).execute():
        if isinstance(event, events.NonFatalError | events.FatalError):
            failures.append(repr(event))
        if isinstance(event, events.ScenarioFinished):
            failures += _failures(event)
            codes = answers.setdefault(event.recorder.label, set())
            codes |= {each.response.status_code for each in event.recorder.interactions.values() if each.response}
    assert not failures, "\n\n".join(failures[:10])
    return answers


def _config(service: Service, token: str) -> SchemathesisConfig:
    return SchemathesisConfig.from_dict(
        {
            "headers": {"Authorization": f"Bearer {token}"},
            "request-timeout": 30.0,
            "dictionaries": {name: {"values": ids} for name, ids in service.ids.items()},
            "parameters": {f"path.{name}": {"dictionary": name, "probability": 0.8} for name in service.ids},
            "generation": {
                "max-examples": EXAMPLES,
                # As with hypothesis elsewhere: in CI a failure must be found again by running again.
                "deterministic": bool(os.environ.get("CI")),
                "with-security-parameters": False,
            },
            "checks": {"enabled": False, **{name: {"enabled": True} for name in CHECKS}},
            # Other methods than a path knows are tried in tests/control/api.
            "phases": {"stateful": {"enabled": False}, "coverage": {"unexpected-methods": []}},
            "cache": {"enabled": False},
        }
    )


def _failures(event: events.ScenarioFinished) -> Iterator[str]:
    for nodes in event.recorder.checks.values():
        for node in nodes:
            if node.status != Status.SUCCESS:
                failure = node.failure_info
                yield f"{event.recorder.label}, {node.name}: {failure and (failure.failure, failure.code_sample)}"


@pytest.mark.timeout(300)
def test_no_answer_is_a_defect_or_outside_of_the_document(tmp_path: Path) -> None:
    with filled(tmp_path) as service:
        document = httpx.get(f"{service.base_url}/api/v1/openapi.json", trust_env=False).json()
        answers = walk(service, service.personal, but=IN_PERSON)
        for operation in IN_PERSON:
            answers |= walk(service, service.tool, only=[operation])
    described = {
        f"{method.upper()} {path}": operation["operationId"]
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    # schemathesis has read the document itself, and tries all the others.
    assert set(answers) == set(described) - {"GET /api/v1/openapi.json"}
    granted = {described[name] for name, statuses in answers.items() if min(statuses) < 300}
    assert set(described.values()) - granted <= NEVER_GRANTED
