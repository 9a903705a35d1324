"""What counts as a proof, and what a person is shown when there is none: DNS and the web are scripted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollgate.control.outbound import FetchRefused, Missing, Unreachable
from tollgate.control.proofs import WELL_KNOWN, Finding, Proofs, dns_name, record

DOMAIN = "example.com"
TEAM = "team_1"
PROOF = "tollgate-team=team_1"
OTHER = "tollgate-team=team_2"
URL = "https://example.com/.well-known/tollgate.txt"


class Never:
    """An answer that does not come."""


@dataclass
class Dns:
    """TXT records, or what is raised instead; names without an entry have none."""

    records: dict[str, list[str] | Exception | Never] = field(default_factory=dict)
    given_up: list[str] = field(default_factory=list)

    async def texts(self, name: str) -> list[str]:
        answer = self.records.get(name, [])
        if isinstance(answer, Never):
            await wait_for_ever(self.given_up, name)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, list)
        return answer


@dataclass
class Web:
    """The one file, or what is raised instead."""

    answer: bytes | Exception | Never = field(default_factory=lambda: Missing(f"{URL} answers 404."))
    fetched: list[tuple[str, str]] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)

    def url(self, host: str, path: str) -> str:
        return f"https://{host}{path}"

    async def get(self, host: str, path: str) -> bytes:
        self.fetched.append((host, path))
        if isinstance(self.answer, Never):
            await wait_for_ever(self.given_up, host)
        if isinstance(self.answer, Exception):
            raise self.answer
        assert isinstance(self.answer, bytes)
        return self.answer


async def wait_for_ever(given_up: list[str], name: str) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        given_up.append(name)


async def look(dns: Dns, web: Web, *, seconds: float = 60.0, domain: str = DOMAIN) -> Finding:
    return await Proofs(dns, web, seconds=seconds).look(domain, TEAM)


def test_record_and_name_are_as_documented() -> None:
    assert record(TEAM) == PROOF
    assert dns_name(DOMAIN) == "_tollgate.example.com"
    assert WELL_KNOWN == "/.well-known/tollgate.txt"


# ---- DNS


@pytest.mark.parametrize("name", ["_tollgate.example.com", "example.com"])
@pytest.mark.parametrize(
    "texts", [[PROOF], [f"  {PROOF}\t"], ["v=spf1 -all", OTHER, PROOF]], ids=["alone", "blanks", "beside others"]
)
async def test_txt_record_proves(name: str, texts: list[str]) -> None:
    assert await look(Dns({name: list(texts)}), Web()) == Finding(proven=True, by="dns")


@pytest.mark.parametrize(
    "text", [OTHER, PROOF + "2", "x" + PROOF, PROOF.upper(), f'"{PROOF}"', f"{PROOF} {PROOF}", "tollgate-team="]
)
async def test_txt_record_that_is_not_exactly_ours_proves_nothing(text: str) -> None:
    finding = await look(Dns({dns_name(DOMAIN): [text], DOMAIN: [text]}), Web())
    assert (finding.proven, finding.by, finding.certain) == (False, "", True)


async def test_problem_names_the_record_to_add() -> None:
    finding = await look(Dns(), Web())
    assert finding == Finding(
        proven=False,
        by="",
        certain=True,
        problems=(f"No TXT record at _tollgate.example.com: add one with {PROOF}.", f"{URL} answers 404."),
    )


async def test_problem_shows_when_the_record_is_another_teams() -> None:
    finding = await look(Dns({dns_name(DOMAIN): [OTHER], DOMAIN: [OTHER]}), Web(f"{OTHER}\n".encode()))
    assert finding.certain
    assert finding.problems == (
        f"The TXT record at _tollgate.example.com names another team: add one with {PROOF}.",
        f"The TXT record at example.com names another team: add one with {PROOF}.",
        f"{URL} names another team: add the line {PROOF}.",
    )


async def test_problem_shows_when_the_record_is_something_else() -> None:
    finding = await look(Dns({dns_name(DOMAIN): ["hello"], DOMAIN: ["v=spf1 -all"]}), Web(b"hello\n"))
    assert finding.certain
    assert finding.problems == (
        f"No TXT record at _tollgate.example.com is exactly {PROOF}: correct it.",
        f"No line of {URL} is exactly {PROOF}: add it.",
    )


# ---- the file


@pytest.mark.parametrize(
    "body",
    [
        PROOF.encode(),
        f"{PROOF}\n".encode(),
        f"\r\n{OTHER}\r\n  {PROOF} \r\n".encode(),
        f"\ufeff{PROOF}\r\n".encode(),
        b"\xff\xfe not UTF-8\n" + PROOF.encode(),
    ],
    ids=["bare", "line", "CRLF beside another", "BOM", "beside rubbish"],
)
async def test_line_of_the_file_proves(body: bytes) -> None:
    web = Web(body)
    assert await look(Dns(), web) == Finding(proven=True, by="well-known")
    assert web.fetched == [(DOMAIN, WELL_KNOWN)]


@pytest.mark.parametrize(
    "body", [b"", OTHER.encode(), f"x{PROOF}".encode(), f"<p>{PROOF}</p>".encode(), PROOF.encode("utf-16")]
)
async def test_file_without_the_line_proves_nothing(body: bytes) -> None:
    finding = await look(Dns(), Web(body))
    assert (finding.proven, finding.certain) == (False, True)


@given(st.text(), st.text())
async def test_text_around_the_record_never_proves(before: str, after: str) -> None:
    text = before + PROOF + after
    proven = (await look(Dns({DOMAIN: [text]}), Web())).proven
    assert proven == (not before.strip() and not after.strip())


@given(st.binary())
async def test_any_file_is_read_without_failing(body: bytes) -> None:
    assert not (await look(Dns(), Web(body))).proven


# ---- what is certain


@pytest.mark.parametrize(
    ("problem", "certain"),
    [
        (Missing(f"{URL} answers 404."), True),
        (FetchRefused(f"{URL} answers 302, and redirects are not followed."), True),
        (Unreachable(f"{URL} cannot be reached."), False),
    ],
)
async def test_only_a_failed_fetch_leaves_doubt(problem: Exception, certain: bool) -> None:
    finding = await look(Dns(), Web(problem))
    assert finding.certain is certain
    assert finding.problems[-1] == str(problem)


@pytest.mark.parametrize("name", ["_tollgate.example.com", "example.com"])
async def test_failed_look_up_leaves_doubt(name: str) -> None:
    finding = await look(Dns({name: Unreachable("DNS failed.")}), Web())
    assert (finding.proven, finding.certain) == (False, False)
    assert "DNS failed." in finding.problems


async def test_proof_counts_though_all_other_places_fail() -> None:
    dns = Dns({dns_name(DOMAIN): Unreachable("DNS failed."), DOMAIN: Unreachable("DNS failed.")})
    assert await look(dns, Web(PROOF.encode())) == Finding(proven=True, by="well-known")
    dns = Dns({dns_name(DOMAIN): [PROOF], DOMAIN: Unreachable("DNS failed.")})
    assert await look(dns, Web(Unreachable("down"))) == Finding(proven=True, by="dns")


# ---- time


async def test_first_proof_ends_the_other_looks() -> None:
    dns, web = Dns({dns_name(DOMAIN): [PROOF], DOMAIN: Never()}), Web(Never())
    assert (await look(dns, web)).by == "dns"
    assert (dns.given_up, web.given_up) == ([DOMAIN], [DOMAIN])
    dns = Dns({dns_name(DOMAIN): Never(), DOMAIN: Never()})
    assert (await look(dns, Web(PROOF.encode()))).by == "well-known"
    assert sorted(dns.given_up) == sorted([dns_name(DOMAIN), DOMAIN])


async def test_look_ends_at_the_deadline_and_leaves_doubt() -> None:
    dns, web = Dns({dns_name(DOMAIN): Never(), DOMAIN: Never()}), Web(Never())
    finding = await look(dns, web, seconds=0.01)
    assert (finding.proven, finding.certain) == (False, False)
    assert finding.problems == (
        "DNS did not answer for _tollgate.example.com within 0.01 s: try again later.",
        "DNS did not answer for example.com within 0.01 s: try again later.",
        f"{URL} did not answer within 0.01 s: try again later.",
    )


async def test_cancelled_look_leaves_nothing_running() -> None:
    dns, web = Dns({dns_name(DOMAIN): Never(), DOMAIN: Never()}), Web(Never())
    before = asyncio.all_tasks()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(Proofs(dns, web).look(DOMAIN, TEAM), 0.01)
    assert asyncio.all_tasks() == before
    assert len(dns.given_up) == 2
    assert len(web.given_up) == 1


async def test_defect_is_not_taken_for_a_missing_proof() -> None:
    with pytest.raises(ZeroDivisionError):
        await look(Dns({DOMAIN: ZeroDivisionError()}), Web(Never()))


# ---- localhost, and instructions


@pytest.mark.parametrize("domain", ["localhost", "app.localhost"])
async def test_localhost_is_never_proven_nor_looked_up(domain: str) -> None:
    web = Web(PROOF.encode())
    finding = await look(Dns({domain: [PROOF], dns_name(domain): [PROOF]}), web, domain=domain)
    assert (finding.proven, finding.certain, web.fetched) == (False, True, [])
    assert "localhost" in finding.problems[0]
    assert Proofs(Dns(), web).how_to(domain, TEAM) == finding.problems[0]


def test_how_to_shows_both_ways_in_one_sentence() -> None:
    assert Proofs(Dns(), Web()).how_to(DOMAIN, TEAM) == (
        f"Publish {PROOF} as a TXT record at _tollgate.example.com (or at example.com itself), "
        f"or as a line of {URL}, answered with 200 and without a redirect."
    )
