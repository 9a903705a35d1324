"""Domains between two teams, by the tool: proofs, conflicts and take-overs; the rules are tested in tests/control.

The service, DNS and the web site that it looks for proofs on are real, on loopback.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from parts.certs import make_certificate
from parts.dns import nameserver
from parts.ports import LOOPBACK
from parts.processes import eventually
from parts.raw_http import call
from parts.site import Site, site
from parts.tollgate import Gateway, bearer, serving
from parts.tool import Ran, Tool
from parts.upstream import upstream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tollgate.core.models import Team

pytestmark = pytest.mark.e2e

# One for each test; all have an address in DNS whenever it answers, which is this test's own alone.
DOMAINS = [
    "text-example.com",
    "file-example.com",
    "conflict-example.com",
    "claimed-example.com",
    "vanished-example.com",
]


@dataclass(frozen=True)
class Person:
    """A user with the tool, who owns one team."""

    team: Team
    tool: Tool

    @property
    def proof(self) -> str:
        """What the team publishes."""
        return f"tollgate-team={self.team.id}"

    def __call__(self, *arguments: str) -> Ran:
        """Run a command for the team."""
        return self.tool(*arguments, "--team", self.team.name)

    def whitelist(self, *arguments: str) -> Ran:
        """Run a command on the team's list."""
        return self("rpc", "whitelist", *arguments)

    def add(self, domain: str, *more: str) -> dict[str, Any]:
        """Whitelist a domain, which must work."""
        added = self.whitelist("add", domain, *more, "--json")
        assert added.code == 0, added.err
        entry: dict[str, Any] = added.json
        return entry

    def verify(self, entry: dict[str, Any]) -> None:
        """Verify an entry, which must work."""
        verified = self.whitelist("verify", entry["id"], "--json")
        assert verified.code == 0, verified.err
        assert verified.json["verified_at"] is not None

    def allows(self, origin: str) -> bool:
        """Whether the team's list lets an origin pass."""
        allowed: bool = self.whitelist("check", origin, "--json").json["allowed"]
        return allowed

    def audit(self, action: str, target: str) -> dict[str, Any]:
        """Give the entry of the team's audit log about this."""
        (entry,) = (
            each
            for each in self("audit", "--json").json["items"]
            if (each["action"], each["target"]) == (action, target)
        )
        found: dict[str, Any] = entry
        return found


@dataclass(frozen=True)
class Town:
    """A service, the site of all domains, and two people of two teams. DNS answers while a test lets it."""

    gateway: Gateway
    site: Site
    folder: Path
    dns_port: int
    ada: Person
    grace: Person

    @contextmanager
    def dns(self, texts: dict[str, list[str]] | None = None, *, refuses: bool = False) -> Iterator[None]:
        """Let DNS answer with these TXT records, and the address of every domain."""
        addresses = {domain: [LOOPBACK] for domain in DOMAINS}
        with nameserver(self.folder, addresses=addresses, texts=texts, refuses=refuses, port=self.dns_port):
            yield

    def url(self, domain: str) -> str:
        """Where a domain's file is looked for."""
        return f"https://{domain}:{self.site.port}/.well-known/tollgate.txt"

    def browses(self, origin: str) -> int:
        """Call the chain as a page of this origin does."""
        return self.gateway.exchange(call("eth_chainId"), headers={"Origin": origin}).status


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("town")
    certificate = make_certificate(folder, *DOMAINS)
    with nameserver(folder / "dns") as chosen:
        port = chosen.port
    with site(certificate) as web, upstream() as node:
        settings: dict[str, dict[str, object]] = {
            "whitelist": {
                "resolvers": [f"{LOOPBACK}:{port}"],
                "allow_private_addresses": True,
                "well_known_port": web.port,
            },
            "limits": {"misses_per_second_per_address": 1000},
        }
        env = {"SSL_CERT_FILE": str(certificate.authority)}
        with serving(folder, {"eth/mainnet": [node.url]}, settings, env=env) as gateway:
            people = [person(gateway, folder, *names) for names in (("ada", "acme"), ("grace", "others"))]
            yield Town(gateway, web, folder / "dns", port, *people)


def person(gateway: Gateway, folder: Path, name: str, team: str) -> Person:
    email = f"{name}@example.com"
    made = gateway.books.team(team)
    gateway.books.account(email, **{team: "owner"})
    tool = Tool(folder / name, gateway.base_url).with_token(gateway.books.personal_token(email))
    return Person(made, tool)


# ---- verifying


def test_txt_record_verifies_and_without_it_the_words_name_the_record(town: Town) -> None:
    ada, domain = town.ada, "text-example.com"
    with town.dns():
        entry = ada.add(domain)
        assert entry["verified_at"] is None
        ran = ada.whitelist("verify", entry["id"])
        assert ran.code == 1
        assert ran.out == ""
        assert f"No TXT record at _tollgate.{domain}: add one with {ada.proof}." in ran.err
        assert f"{town.url(domain)} answers 404." in ran.err
        assert f"Publish {ada.proof} as a TXT record at _tollgate.{domain}" in ran.err
        assert f"or as a line of {town.url(domain)}" in ran.err
    with town.dns({f"_tollgate.{domain}": ["v=spf1 -all", ada.proof]}):
        ada.verify(entry)
    assert ada.audit("domain.verify", entry["id"])["details"] == {"by": "dns"}


def test_file_on_the_site_verifies(town: Town) -> None:
    ada, domain = town.ada, "file-example.com"
    entry = ada.add(domain)
    town.site.proofs[domain] = f"# ours\r\n{ada.proof}\r\n"
    with town.dns():
        ada.verify(entry)
    assert ada.audit("domain.verify", entry["id"])["details"] == {"by": "well-known"}
    assert ada.whitelist("show", entry["id"], "--json").json["verified_at"] is not None


# ---- conflict


def test_domain_of_another_team_is_refused_with_the_way_to_take_it_over(town: Town) -> None:
    domain = "conflict-example.com"
    entry = town.ada.add(domain)
    ran = town.grace.whitelist("add", domain)
    assert (ran.code, ran.out) == (1, "")
    assert f"Another team has whitelisted {domain}." in ran.err
    assert f"Publish {town.grace.proof} as a TXT record at _tollgate.{domain}" in ran.err
    assert town.url(domain) in ran.err
    assert f"tollgate rpc whitelist add {domain} --take-over --team others" in ran.err
    # Neither which team has it, nor its entry.
    for secret in ("acme", town.ada.team.id, entry["id"]):
        assert secret not in ran.err
    again = town.ada.whitelist("add", domain)
    assert again.code == 1
    assert f"on your list already, as {entry['id']}" in again.err


# ---- taking over


def test_claim_that_was_never_proven_is_taken_over_at_once_by_proof(town: Town) -> None:
    ada, grace, domain = town.ada, town.grace, "claimed-example.com"
    page = f"https://app.{domain}"
    old = ada.add(domain)
    assert ada.allows(page)
    eventually(lambda: town.browses(page) == 200, what="the page's call")
    with town.dns({f"_tollgate.{domain}": [grace.proof]}):
        new = grace.add(domain, "--take-over")
    assert new["id"] != old["id"]
    assert new["verified_at"] is not None

    # The old team has lost it, and finds out how; by whom is not its business.
    assert ada.whitelist("show", old["id"]).code == 3
    assert not ada.allows(page)
    lost = ada.audit("domain.lost", old["id"])
    assert lost["name"] == domain
    assert lost["details"] == {"why": "another team proved that it owns the domain", "by": "dns"}
    assert "grace" not in str(lost)
    assert grace.team.id not in str(lost)
    gained = grace.audit("domain.add", new["id"])
    assert gained["details"] == {"verified": True, "by": "dns"}
    assert gained["actor"] == "grace@example.com"

    # From now on the page's calls are the new team's: its entry lets them pass, or not.
    assert grace.allows(page)
    assert town.browses(page) == 200
    assert grace.whitelist("update", new["id"], "--inactive").code == 0
    eventually(lambda: town.browses(page) == 403, what="the end of the page's calls")
    assert grace.whitelist("update", new["id"], "--active").code == 0
    eventually(lambda: town.browses(page) == 200, what="the return of the page's calls")


def test_verified_claim_is_taken_over_once_its_proof_has_vanished(town: Town) -> None:
    ada, grace, domain = town.ada, town.grace, "vanished-example.com"
    old = ada.add(domain)
    with town.dns({f"_tollgate.{domain}": [ada.proof]}):
        ada.verify(old)
        assert grace.whitelist("add", domain, "--take-over").code == 1
    with town.dns({f"_tollgate.{domain}": [grace.proof]}):
        new = grace.add(domain, "--take-over")
    assert ada.whitelist("show", old["id"]).code == 3
    assert ada.audit("domain.lost", old["id"])["name"] == domain
    assert grace.allows(f"https://{domain}")

    # Now the other keeps it by a valid proof.
    with town.dns({f"_tollgate.{domain}": [ada.proof, grace.proof]}):
        assert ada.whitelist("add", domain, "--take-over").code == 1
    assert grace.whitelist("show", new["id"]).code == 0


# ---- at the same time


def meet(town: Town, domains: list[str], **more: object) -> dict[str, list[int]]:
    """Let both teams add each domain at once, without the tool's start-up in between; return the answers."""
    secrets = [person.tool.variables["TOLLGATE_TOKEN"] for person in (town.ada, town.grace)]
    start = threading.Barrier(len(domains) * len(secrets), timeout=20)

    def add(team: str, secret: str, domain: str) -> int:
        with httpx.Client(base_url=town.gateway.base_url, trust_env=False, timeout=20) as http:
            start.wait()
            url = f"/api/v1/teams/{team}/domains"
            return http.post(url, json={"domain": domain, **more}, headers=bearer(secret)).status_code

    with ThreadPoolExecutor(len(domains) * len(secrets)) as pool:
        waiting = {
            domain: [
                pool.submit(add, team, secret, domain)
                for team, secret in zip(("acme", "others"), secrets, strict=True)
            ]
            for domain in domains
        }
        return {domain: sorted(each.result(30) for each in pair) for domain, pair in waiting.items()}


def test_every_race_for_a_domain_has_one_winner(town: Town) -> None:
    domains = [f"race-{number}-example.com" for number in range(8)]
    assert meet(town, domains) == {domain: [201, 409] for domain in domains}
    assert sorted(each.allows(f"https://{domains[0]}") for each in (town.ada, town.grace)) == [False, True]


def test_every_race_to_take_a_domain_over_has_one_winner(town: Town) -> None:
    domains = [f"prize-{number}-example.com" for number in range(4)]
    third = town.gateway.books.team("third")
    for domain in domains:
        town.gateway.books.domain(third, domain)
    with town.dns({f"_tollgate.{domain}": [town.ada.proof, town.grace.proof] for domain in domains}):
        assert meet(town, domains, take_over=True) == {domain: [201, 409] for domain in domains}
