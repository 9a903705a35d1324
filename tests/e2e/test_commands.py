"""The given commands, run as real processes against a real service (spec.md, section 5)."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from parts.processes import eventually
from parts.raw_http import JSON, Answer, RawConnection, call
from parts.tollgate import TOLLGATE, Books, Demo, bearer, demo
from parts.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

TEAM = ("--team", "demo")
# As the order gives them.
GIVEN = [
    "rpc tokens create ci",
    "rpc tokens list",
    "rpc tokens delete tok_0000000000000000",
    "rpc whitelist add example.com",
    "rpc whitelist list",
    "rpc whitelist remove dom_0000000000000000",
    "rpc logs",
]


@dataclass(frozen=True)
class Service:
    """A running demo, its tool with a login, and one without."""

    running: Demo
    tool: Tool
    signed_out: Tool

    def call(self, headers: dict[str, str]) -> Answer:
        """Call the chain."""
        with RawConnection.open(self.running.port) as connection:
            return connection.exchange("/x/eth/mainnet", call("eth_chainId"), {**JSON, **headers})


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("commands")
    with demo(folder, "--workers", "2") as running:
        signed_out = Tool(folder / "home", running.printed["base_url"])
        make_team_of_others(running)
        yield Service(running, signed_out.with_token(running.printed["management_token"]), signed_out)


def make_team_of_others(running: Demo) -> None:
    """As the operator does, on the machine of the running service."""
    subprocess.run(
        [TOLLGATE, "admin", "create-account", "grace@example.com", "--team", "others", "--password-stdin"],
        input="correct horse battery\n",
        env={**os.environ, "TOLLGATE_DATA_DIR": running.printed["data_dir"]},
        text=True,
        timeout=60,
        check=True,
    )


def words(command: str) -> list[str]:
    return command.split()


# ---- what the order gives


def test_a_token_is_created_used_listed_and_deleted(service: Service) -> None:
    made = service.tool("rpc", "tokens", "create", "given", *TEAM, "--json")
    assert made.code == 0, made.err
    token = made.json
    assert {"id", "name", "secret"} <= set(token)
    assert token["name"] == "given"
    assert service.call(bearer(token["secret"])).status == 200

    listed = service.tool("rpc", "tokens", "list", *TEAM, "--json")
    assert listed.code == 0
    assert set(listed.json) == {"items", "next"}
    (row,) = [row for row in listed.json["items"] if row["id"] == token["id"]]
    assert row["prefix"] == token["secret"][: len(row["prefix"])]
    assert token["secret"] not in listed.out

    deleted = service.tool("rpc", "tokens", "delete", token["id"], *TEAM)
    assert deleted.code == 0, deleted.err
    eventually(lambda: service.call(bearer(token["secret"])).status == 401, what="the end of the token")
    assert token["id"] not in service.tool("rpc", "tokens", "list", *TEAM).out


def test_a_domain_is_whitelisted_used_listed_and_removed(service: Service) -> None:
    page = {"Origin": "https://app.example.org"}
    assert service.call(page).status == 403
    added = service.tool("rpc", "whitelist", "add", "example.org", *TEAM, "--json")
    assert added.code == 0, added.err
    entry = added.json
    assert entry["domain"] == "example.org"
    eventually(lambda: service.call(page).status == 200, what="the page's call")

    listed = service.tool("rpc", "whitelist", "list", *TEAM)
    assert listed.code == 0
    assert entry["id"] in listed.out
    assert "example.org" in listed.out

    removed = service.tool("rpc", "whitelist", "remove", entry["id"], *TEAM)
    assert removed.code == 0, removed.err
    eventually(lambda: service.call(page).status == 403, what="the end of the entry")
    assert entry["id"] not in service.tool("rpc", "whitelist", "list", *TEAM).out


def test_removal_takes_the_entry_id_and_prints_it_where_the_domain_is_given(service: Service) -> None:
    entry = service.tool("rpc", "whitelist", "add", "example.net", *TEAM, "--json").json
    ran = service.tool("rpc", "whitelist", "remove", "example.net", *TEAM)
    assert ran.code == 2
    assert f"tollgate rpc whitelist remove {entry['id']}" in ran.err
    assert service.tool("rpc", "whitelist", "remove", "example.org", *TEAM).code == 3


@pytest.mark.parametrize("command", GIVEN)
def test_without_a_login_the_code_is_4_and_the_words_show_what_to_do(service: Service, command: str) -> None:
    ran = service.signed_out(*words(command), *TEAM)
    assert ran.code == 4
    assert ran.out == ""
    assert "tollgate auth login" in ran.err


@pytest.mark.parametrize("command", GIVEN)
def test_a_team_of_others_and_one_that_does_not_exist_answer_alike(service: Service, command: str) -> None:
    others = service.tool(*words(command), "--team", "others")
    unknown = service.tool(*words(command), "--team", "nobody")
    assert (others.code, unknown.code) == (5, 5)
    assert others.out == unknown.out == ""
    assert others.err.replace("others", "nobody") == unknown.err


@pytest.mark.parametrize("command", [command for command in GIVEN if "_0" in command])
def test_an_unknown_id_is_not_found(service: Service, command: str) -> None:
    ran = service.tool(*words(command), *TEAM)
    assert ran.code == 3
    assert "list" in ran.err


def test_a_mistyped_team_is_answered_with_the_nearest_of_ones_own(service: Service) -> None:
    ran = service.tool("rpc", "tokens", "list", "--team", "dmeo")
    assert ran.code == 5
    assert '"demo"' in ran.err


def test_team_comes_from_the_environment(service: Service) -> None:
    named, unknown = (
        Tool(service.tool.home, service.tool.url, {**service.tool.variables, "TOLLGATE_TEAM": team})
        for team in ("demo", "nowhere")
    )
    assert named("rpc", "tokens", "list").code == 0
    assert unknown("rpc", "tokens", "list").code != 0
    assert service.tool("rpc", "tokens", "list").code == 0, "with one team none need be named"


# ---- around it


def test_every_setting_of_a_token_is_obeyed(service: Service) -> None:
    tool = service.tool
    made = tool(
        "rpc", "tokens", "create", "narrow", *TEAM, "--network", "eth/mainnet", "--method", "eth_chain*",
        "--rps", "1000", "--expires", "1h", "--json",
    ).json  # fmt: skip
    header = bearer(made["secret"])
    assert made["networks"] == ["eth/mainnet"]
    assert service.call(header).status == 200
    with RawConnection.open(service.running.port) as connection:
        elsewhere = connection.exchange("/x/eth/sepolia", call("eth_chainId"), {**JSON, **header})
        other = connection.exchange("/x/eth/mainnet", call("eth_gasPrice"), {**JSON, **header})
    assert elsewhere.json()["error"]["data"]["reason"] == "network_not_allowed"
    assert other.json()["error"]["data"]["reason"] == "method_not_allowed"

    def change(*options: str) -> None:
        assert tool("rpc", "tokens", "update", made["id"], *TEAM, *options).code == 0

    def reason() -> Any:
        body = service.call(header).json()
        return body["error"]["data"]["reason"] if "error" in body else "ok"

    with RawConnection.open(service.running.port) as connection:
        in_path = f"/x/eth/mainnet/{made['secret']}"
        assert connection.exchange(in_path, call("eth_chainId"), JSON).status == 401
        change("--allow-in-url")
        eventually(lambda: connection.exchange(in_path, call("eth_chainId"), JSON).status == 200, what="the URL")
    change("--method", "net_version")
    eventually(lambda: reason() == "method_not_allowed", what="the new list")
    assert tool("rpc", "tokens", "disable", made["id"], *TEAM).code == 0
    eventually(lambda: reason() == "token_invalid", what="the end")
    assert tool("rpc", "tokens", "enable", made["id"], *TEAM).code == 0
    eventually(lambda: reason() == "method_not_allowed", what="the return")


def test_a_monthly_cap_stops_the_token_and_raising_it_lets_it_go_on(service: Service) -> None:
    made = service.tool("rpc", "tokens", "create", "capped", *TEAM, "--monthly-requests", "3", "--json").json
    for _ in range(3):
        assert service.call(bearer(made["secret"])).status == 200
    eventually(lambda: service.call(bearer(made["secret"])).status == 402, what="the cap")
    assert service.tool("rpc", "tokens", "update", made["id"], *TEAM, "--monthly-requests", "1000").code == 0
    eventually(lambda: service.call(bearer(made["secret"])).status == 200, what="the raised cap")


def test_last_use_is_noted(service: Service) -> None:
    made = service.tool("rpc", "tokens", "create", "used", *TEAM, "--json").json
    assert made["last_used_at"] is None
    assert service.call(bearer(made["secret"])).status == 200

    def last_used() -> Any:
        return service.tool("rpc", "tokens", "show", made["id"], *TEAM, "--json").json["last_used_at"]

    assert eventually(last_used, what="the last use")


def test_rotation_lets_the_old_secret_live_for_the_overlap(service: Service) -> None:
    old = service.tool("rpc", "tokens", "create", "turning", *TEAM, "--json").json
    new = service.tool("rpc", "tokens", "rotate", old["id"], *TEAM, "--overlap", "1h", "--json").json
    assert new["name"] == "turning"
    assert new["replaces"] == old["id"]
    for token in (old, new):
        assert service.call(bearer(token["secret"])).status == 200
    last = service.tool("rpc", "tokens", "rotate", new["id"], *TEAM, "--overlap", "0s", "--json").json
    assert service.call(bearer(last["secret"])).status == 200
    eventually(lambda: service.call(bearer(new["secret"])).status == 401, what="the end of the overlap")


@pytest.mark.parametrize(
    ("domain", "advice"),
    [
        ("app.example.com", "use example.com"),
        ("co.uk", "public suffix"),
        ("alice.bob.eth.limo", "use bob.eth.limo"),
        ("shop.bücher.example", "xn--bcher-kva"),
    ],
)
def test_what_is_no_root_domain_is_refused_with_the_root_to_use(
    service: Service, domain: str, advice: str
) -> None:
    ran = service.tool("rpc", "whitelist", "add", domain, *TEAM)
    assert ran.code == 1
    assert advice in ran.err


def test_the_root_domain_of_a_pasted_address_is_taken_and_shown(service: Service) -> None:
    ran = service.tool("rpc", "whitelist", "add", "https://app.pasted.dev/pricing", *TEAM)
    assert ran.code == 0
    assert "Whitelisted pasted.dev, taken from https://app.pasted.dev/pricing" in ran.err


def test_check_shows_whether_and_why_an_origin_would_pass(service: Service) -> None:
    passing = service.tool("rpc", "whitelist", "check", "http://localhost:3000", *TEAM, "--json")
    assert passing.json["allowed"] is True
    refused = service.tool("rpc", "whitelist", "check", "https://app.example.dev", *TEAM, "--json")
    assert refused.json["allowed"] is False
    assert "tollgate rpc whitelist add example.dev" in refused.json["why"]


def test_audit_shows_who_did_what_from_where(service: Service) -> None:
    made = service.tool("rpc", "tokens", "create", "audited", *TEAM, "--json").json
    entries = service.tool("audit", *TEAM, "--json").json["items"]
    entry = next(entry for entry in entries if entry["target"] == made["id"])
    assert entry["action"] == "token.create"
    assert entry["actor"] == service.running.printed["email"]
    assert entry["address"] == "127.0.0.1"
    assert entry["name"] == "audited"


def test_a_member_without_the_right_is_shown_which_role_has_it(service: Service) -> None:
    invited = service.tool("teams", "members", "invite", "grace@example.com", "--role", "viewer", *TEAM, "--json")
    assert invited.code == 0, invited.err
    token = Books(Path(service.running.printed["data_dir"])).personal_token("grace@example.com")
    grace = service.signed_out.with_token(token)
    assert grace("teams", "join", invited.json["link"]).code == 0
    assert grace("rpc", "tokens", "list", *TEAM).code == 0
    ran = grace("rpc", "tokens", "create", "mine", *TEAM)
    assert ran.code == 5
    assert "owner, admin or developer" in ran.err
    assert "viewer" in ran.err
