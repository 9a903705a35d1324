"""`tollgate admin` as the operator runs it: on a running service, and on a folder that no service has seen yet."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from parts import tool
from parts.ports import free_port
from parts.processes import eventually
from parts.raw_http import call
from parts.terminal import terminal
from parts.tollgate import TOLLGATE, Books, Gateway, bearer, serving, write_settings
from parts.upstream import upstream
from parts.visitor import visitor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tollgate.core.models import Team
    from tollgate.core.people import Account
    from tollgate.store.base import Repositories

pytestmark = pytest.mark.e2e

PASSWORD, OTHER = "correct horse battery", "another horse battery"


def admin(config: Path, *arguments: str, typed: str = "") -> tool.Ran:
    """Run a command of the operator. Whatever happens, a trace is no answer."""
    ran = tool.admin(config, *arguments, typed=typed)
    assert "Traceback" not in ran.out + ran.err, ran.err
    return ran


@dataclass(frozen=True)
class Everything:
    """Everybody and every team in a store."""

    accounts: list[Account]
    teams: list[Team]

    @property
    def names(self) -> tuple[list[str], list[str]]:
        return [each.email for each in self.accounts], [each.name for each in self.teams]


def everything(books: Books) -> Everything:
    async def read(records: Repositories) -> Everything:
        return Everything(await records.accounts.page(100), await records.teams.page(100))

    return books.do(read)


# ---- before any service ran


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the account ada@example.com and its team acme, made by the operator."""
    config = write_settings(tmp_path_factory.mktemp("fresh"), {})
    empty = admin(config, "accounts")
    assert (empty.code, empty.out) == (0, "")
    assert "tollgate admin create-account EMAIL" in empty.err
    made = admin(
        config, "create-account", " Ada@Example.com ", "--team", "acme", "--name", "Ada", "--generate", "--json"
    )
    assert made.code == 0, made.err
    assert set(made.json) == {"id", "email", "team", "password"}
    assert (made.json["email"], made.json["team"]) == ("ada@example.com", "acme")
    assert len(made.json["password"]) >= 20
    assert made.err == "Created the account ada@example.com and its team acme.\n"
    return config


def test_accounts_lists_them_for_people_and_for_programs(fresh: Path) -> None:
    lines = admin(fresh, "accounts").out.splitlines()
    listed = admin(fresh, "accounts", "--json").json
    assert listed["next"] is None
    ada = listed["items"][0]
    assert {name: ada[name] for name in ("email", "name", "active")} == {
        "email": "ada@example.com",
        "name": "Ada",
        "active": True,
    }
    assert f"{ada['id']}  ada@example.com" in lines


NEW = ("create-account", "new@example.com")
TYPED = "--password-stdin"


@pytest.mark.parametrize(
    ("arguments", "typed", "code", "words"),
    [
        (("create-account", "ada", TYPED), PASSWORD, 1, "write one such as ada@example.com"),
        (("create-account", "ada@example.com", TYPED), PASSWORD, 1, "ada@example.com has an account already"),
        ((*NEW, TYPED), "too short", 1, "A password has 10 to 256 characters"),
        ((*NEW, TYPED, "--team", "acme"), PASSWORD, 1, "The team name acme is taken"),
        ((*NEW, TYPED, "--team", "A Team"), PASSWORD, 1, "2 to 40 characters of a-z, 0-9 and hyphens"),
        ((*NEW, TYPED, "--name", "\x1b[31mred"), PASSWORD, 1, "printable characters"),
        ((*NEW, TYPED, "--generate"), PASSWORD, 2, "--password-stdin or --generate, not both"),
        (NEW, PASSWORD, 2, "Without a terminal, give --password-stdin or --generate"),
        (("invite", "grace@example.com", "--team", "nobody"), "", 3, "There is no team nobody"),
        (("invite", "grace@example.com", "--team", ""), "", 1, "2 to 40 characters of a-z, 0-9 and hyphens"),
        (("invite", "grace@example.com", "--team", "\udcff"), "", 1, "2 to 40 characters of a-z, 0-9 and hyphens"),
        (("invite", "grace@example.com", "--role", "king"), "", 1, "owner, admin, developer, billing, viewer"),
        (("reset-link", "grace@example.com"), "", 3, "list them with `tollgate admin accounts`"),
        (("disable", "grace@example.com"), "", 3, "list them with `tollgate admin accounts`"),
        (("enable", "grace"), "", 1, "write one such as ada@example.com"),
    ],
)
def test_what_is_refused_shows_why_and_leaves_nothing_behind(
    fresh: Path, arguments: tuple[str, ...], typed: str, code: int, words: str
) -> None:
    books = Books(fresh.parent / "data")
    before = everything(books).names
    ran = admin(fresh, *arguments, typed=typed)
    assert (ran.code, ran.out) == (code, ""), ran.err
    assert words in ran.err
    assert everything(books).names == before


def test_password_in_another_encoding_is_reported_and_not_repeated(fresh: Path) -> None:
    ended = subprocess.run(
        [TOLLGATE, "admin", *NEW, TYPED, "--config", str(fresh)],
        input="pässwörd in latin".encode("latin-1") + b"\n",
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert b"is not UTF-8" in ended.stderr
    assert b"Traceback" not in ended.stderr
    assert b"in latin" not in ended.stderr


def test_settings_that_cannot_be_used_are_reported_in_words(tmp_path: Path) -> None:
    missing = admin(tmp_path / "nowhere.toml", "accounts")
    assert (missing.code, missing.out) == (1, "")
    assert "there is no such file" in missing.err
    config = write_settings(tmp_path, {})
    (tmp_path / "data").write_text("in the way")
    blocked = admin(config, "accounts")
    assert (blocked.code, blocked.out) == (1, "")
    assert "data_dir" in blocked.err


def test_on_a_terminal_the_password_is_prompted_twice_and_not_shown(tmp_path: Path) -> None:
    config = write_settings(tmp_path, {})
    argv = [TOLLGATE, "admin", "create-account", "ada@example.com", "--config", str(config)]
    with terminal(argv) as screen:
        for question in ("Password (10 characters or more)", "Repeat"):
            screen.wait_for(question)
            screen.type_unseen(PASSWORD)
        screen.wait_for("Created the account ada@example.com.")
        assert screen.process.wait(30) == 0
        assert PASSWORD not in screen.text


def test_a_link_leads_to_where_the_settings_specify(tmp_path: Path) -> None:
    config = write_settings(tmp_path, {}, {"server": {"host": "::1", "port": 8499}})
    assert admin(config, "invite", "ada@example.com").out.startswith("http://[::1]:8499/console/invitations/tgi_")
    config = write_settings(tmp_path, {}, {"server": {"base_url": "https://rpc.example.com"}})
    made = admin(config, "invite", "ada@example.com", "--json")
    assert set(made.json) == {"email", "link", "mailed"}
    assert made.json["mailed"] is False
    assert made.json["link"].startswith("https://rpc.example.com/console/invitations/tgi_")


# ---- on a running service


@dataclass(frozen=True)
class Service:
    """A running service, its settings, and how it was found before anybody had an account."""

    gateway: Gateway
    config: Path
    first: dict[str, httpx.Response]

    def api(self, path: str, secret: str, **more: Any) -> httpx.Response:
        url = f"{self.gateway.base_url}/api/v1{path}"
        method = "POST" if more else "GET"
        return httpx.request(method, url, headers=bearer(secret), trust_env=False, timeout=20, **more)

    def account(self, email: str, *more: str) -> None:
        made = admin(self.config, "create-account", email, TYPED, *more, typed=PASSWORD)
        assert made.code == 0, made.err

    def teams_of(self, email: str) -> dict[str, str]:
        secret = self.gateway.books.personal_token(email)
        return {team["name"]: team["role"] for team in self.api("/teams", secret).json()["items"]}


@contextmanager
def service_with(folder: Path, sign_up: str) -> Iterator[Service]:
    settings: dict[str, dict[str, object]] = {"server": {"port": free_port()}, "accounts": {"sign_up": sign_up}}
    with upstream() as node, serving(folder, {"eth/mainnet": [node.url]}, settings) as gateway:
        with visitor(gateway.base_url) as person:
            first = {
                "sign-in": person.sign_in("admin@example.com", "admin"),
                "sign-up page": person.get("/console/sign-up"),
                "sign-up": person.sign_up("mallory@example.com", PASSWORD),
                "service": person.get("/api/v1/service"),
            }
        yield Service(gateway, folder / "tollgate.toml", first)
        ran = gateway.program.err.read_text() + gateway.program.out.read_text()
        assert "Traceback" not in ran, ran


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service as it is by default: sign-up is closed."""
    with service_with(tmp_path_factory.mktemp("closed"), "closed") as running:
        running.account("owner@example.com", "--team", "house")
        yield running


def test_fresh_service_refuses_sign_in_and_shows_how_to_get_an_account(service: Service) -> None:
    assert service.first["sign-in"].status_code == 401
    assert not service.first["sign-in"].cookies
    page = service.first["sign-up page"]
    assert page.status_code == 200
    assert "tollgate admin invite you@example.com" in page.text
    assert "<form" not in page.text
    assert service.first["sign-up"].status_code == 403
    assert service.first["service"].json()["sign_up"] == "closed"
    assert everything(service.gateway.books).accounts[0].email == "owner@example.com"


def test_account_made_while_the_service_runs_can_sign_in_at_once(service: Service) -> None:
    service.account("ada@example.com", "--team", "acme")
    with visitor(service.gateway.base_url) as person:
        assert person.sign_in("ada@example.com", "not the password").status_code == 401
        assert person.sign_in("Ada@Example.com", PASSWORD).status_code == 303
        assert person.signed_in()
    assert service.teams_of("ada@example.com") == {"acme": "owner"}


def test_invitation_link_makes_the_account_and_the_seat_once(service: Service) -> None:
    printed = admin(service.config, "invite", "Grace@Example.com", "--team", "house", "--role", "admin")
    assert printed.code == 0
    assert printed.err == "Give this link to grace@example.com; it works once:\n"
    link = printed.out.strip()
    with visitor(service.gateway.base_url) as person:
        page = person.get(link)
        assert page.status_code == 200
        assert "Join the team house" in page.text
        assert "grace@example.com" in page.text
        assert person.join(link, "too short").status_code == 400
        assert person.join(link, PASSWORD).status_code == 303
        assert person.signed_in()
    assert service.teams_of("grace@example.com") == {"house": "admin"}
    with visitor(service.gateway.base_url) as another:
        assert another.get(link).status_code == 404
        assert another.join(link, OTHER).status_code == 404
        assert another.sign_in("grace@example.com", PASSWORD).status_code == 303


def test_invitation_to_no_team_makes_an_account_alone_and_the_latest_link_counts(service: Service) -> None:
    older, link = (admin(service.config, "invite", "alan@example.com", "--json").json["link"] for _ in range(2))
    with visitor(service.gateway.base_url) as person:
        assert person.join(older, PASSWORD).status_code == 404
        assert person.join(link, PASSWORD).status_code == 303
    assert service.teams_of("alan@example.com") == {}


def test_reset_link_sets_the_password_once_and_ends_all_logins(service: Service) -> None:
    service.account("edsger@example.com")
    personal = service.gateway.books.personal_token("edsger@example.com")
    older = admin(service.config, "reset-link", "edsger@example.com").out.strip()
    printed = admin(service.config, "reset-link", "Edsger@example.com", "--json")
    assert printed.code == 0
    assert printed.json["email"] == "edsger@example.com"
    link = printed.json["link"]
    with visitor(service.gateway.base_url) as before, visitor(service.gateway.base_url) as person:
        assert before.sign_in("edsger@example.com", PASSWORD).status_code == 303
        assert person.set_password(older, OTHER).status_code == 404
        assert person.get(link).status_code == 200
        assert person.set_password(link, "too short").status_code == 400
        assert person.set_password(link, OTHER).status_code == 303
        assert not before.signed_in()
        assert service.api("/me", personal).status_code == 401
        assert person.get(link).status_code == 404
        assert person.set_password(link, PASSWORD).status_code == 404
        assert person.sign_in("edsger@example.com", PASSWORD).status_code == 401
        assert person.sign_in("edsger@example.com", OTHER).status_code == 303


def test_disabled_account_stops_at_once_and_its_teams_tokens_go_on(service: Service) -> None:
    email = "kay@example.com"
    service.account(email, "--team", "kays")
    with visitor(service.gateway.base_url) as person:
        assert person.sign_in(email, PASSWORD).status_code == 303
        tokens = person.log_tool_in()
        credentials = [tokens["access_token"], service.gateway.books.personal_token(email)]
        assert [service.api("/me", each).status_code for each in credentials] == [200, 200]
        made = service.api("/teams/kays/tokens", credentials[0], json={"name": "ci"})
        chain = {"body": call("eth_chainId"), "token": made.json()["secret"]}
        assert service.gateway.exchange(**chain).status == 200
        link = admin(service.config, "reset-link", email).out.strip()

        off = admin(service.config, "disable", "Kay@example.com")
        assert (off.code, off.out, off.err) == (0, "", "kay@example.com is disabled.\n")
        assert "kay@example.com  (disabled)" in admin(service.config, "accounts").out

        assert [service.api("/me", each).status_code for each in credentials] == [401, 401]
        assert person.get("/console").status_code == 303
        renewed = person.post(
            "/api/v1/oauth/token",
            grant_type="refresh_token",
            refresh_token=tokens["refresh_token"],
            client_id="tollgate-cli",
        )
        assert (renewed.status_code, renewed.json()["error"]) == (400, "invalid_grant")
        assert person.sign_in(email, PASSWORD).status_code == 401
        assert person.get(link).status_code == 404
        refused = admin(service.config, "reset-link", email)
        assert (refused.code, refused.out) == (1, "")
        assert f"tollgate admin enable {email}" in refused.err
        assert service.gateway.exchange(**chain).status == 200

        assert admin(service.config, "enable", email).code == 0
        assert person.sign_in(email, PASSWORD).status_code == 303
        assert [service.api("/me", each).status_code for each in credentials] == [401, 401]
        assert service.gateway.exchange(**chain).status == 200


def test_operator_suspends_a_team_and_gives_it_terms_of_its_own(service: Service) -> None:
    service.account("tony@example.com", "--team", "tonys")
    owner = service.gateway.books.personal_token("tony@example.com")
    made = service.api("/teams/tonys/tokens", owner, json={"name": "ci"})
    chain = {"body": call("eth_chainId"), "token": made.json()["secret"]}
    assert service.gateway.exchange(**chain).status == 200

    off = admin(service.config, "suspend", "tonys", "--reason", "unpaid", "--yes", "--json")
    assert (off.code, off.json["suspended_reason"]) == (0, "unpaid"), off.err
    eventually(lambda: service.gateway.exchange(**chain).status == 401, what="no more calls")
    suspended = admin(service.config, "teams", "--state", "suspended", "--json").json
    assert [each["name"] for each in suspended["items"]] == ["tonys"]
    assert admin(service.config, "unsuspend", "tonys").code == 0
    eventually(lambda: service.gateway.exchange(**chain).status == 200, what="calls again")

    terms = ("--price", "3.00", "--free", "0", "--limit", "50", "--cap", "20")
    planned = admin(service.config, "plan", "tonys", *terms)
    assert planned.code == 0, planned.err
    shown = {line.partition("  ")[0]: line.partition("  ")[2].strip() for line in planned.out.splitlines()}
    assert (shown["price"], shown["free"]) == ("$3.00 (default $5.00)", "0 (default 1,000,000)")
    assert (shown["a second"], shown["cap"]) == ("50", "$20.00")

    def charged() -> bool:
        assert service.gateway.exchange(**chain).status == 200
        used = admin(service.config, "usage", "--team", "tonys", "--json").json
        # At 3 USD a million a call costs 3 micros; the calls before the plan were free.
        return bool(used["cost_micros"]) and used["cost_micros"] % 3 == 0

    eventually(charged, what="calls at the team's own price")
    everybody = admin(service.config, "usage", "--json").json
    assert {each["name"] for each in everybody["items"]} >= {"tonys"}
    reset = admin(service.config, "plan", "tonys", "--reset", "--json")
    assert (reset.code, reset.json["micros_per_million"], reset.json["free_requests"]) == (0, None, None)
    audited = service.api("/teams/tonys/audit?limit=100", owner).json()["items"]
    # Suspended, let in again, planned, reset.
    assert [each["action"] for each in audited].count("team.terms") == 4
    unknown = admin(service.config, "plan", "nobody", "--free", "5")
    assert (unknown.code, unknown.out) == (3, "")
    assert "nobody" in unknown.err


def test_guest_of_a_team_cannot_make_an_account_while_sign_up_is_closed(service: Service) -> None:
    link = invited_by_a_team(service, "guest@example.com")
    with visitor(service.gateway.base_url) as person:
        page = person.get(link)
        assert page.status_code == 200
        assert "Accounts are created by the operator" in page.text
        assert person.join(link, PASSWORD).status_code == 403
        service.account("guest@example.com")
        assert person.sign_in("guest@example.com", PASSWORD).status_code == 303
        assert person.post(link, act="accept").status_code == 303
    assert service.teams_of("guest@example.com") == {"house": "viewer"}


def invited_by_a_team(service: Service, email: str) -> str:
    owner = service.gateway.books.personal_token("owner@example.com")
    made = service.api("/teams/house/invitations", owner, json={"email": email, "role": "viewer"})
    assert made.status_code == 201, made.text
    return str(made.json()["link"])


def test_sign_up_for_the_invited_takes_only_guests_of_teams(tmp_path: Path) -> None:
    with service_with(tmp_path, "invited") as service:
        assert service.first["service"].json()["sign_up"] == "invited"
        assert service.first["sign-up"].status_code == 403
        page = service.first["sign-up page"].text
        assert "tollgate teams members invite you@example.com" in page
        assert "<form" not in page
        service.account("owner@example.com", "--team", "house")
        link = invited_by_a_team(service, "guest@example.com")
        with visitor(service.gateway.base_url) as person:
            assert person.get(link).status_code == 200
            assert person.join(link, PASSWORD).status_code == 303
            assert person.signed_in()
        assert service.teams_of("guest@example.com") == {"house": "viewer"}


def test_open_sign_up_takes_anyone_once(tmp_path: Path) -> None:
    with service_with(tmp_path, "open") as service:
        assert service.first["service"].json()["sign_up"] == "open"
        assert service.first["sign-in"].status_code == 401
        assert "<form" in service.first["sign-up page"].text
        assert service.first["sign-up"].status_code == 303
        with visitor(service.gateway.base_url) as person:
            assert person.sign_up("mallory@example.com", OTHER).status_code == 409
            assert person.sign_up("new@example.com", "too short").status_code == 400
            assert person.sign_in("mallory@example.com", PASSWORD).status_code == 303
        assert everything(service.gateway.books).names == (["mallory@example.com"], [])
