"""Proofs that a team owns a domain: a TXT record in DNS, or a file on its web site, that names the team.

Owns the form of a proof, where it is looked for, and the instructions for publishing it. What a proof allows
(verification, take-over) is decided elsewhere; `outbound.py` fetches URLs safely. Nothing is stored or cached:
each check queries the domain again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct

from tollgate.control.outbound import FetchRefused, Missing, Unreachable
from tollgate.core.origins import LOCALHOST

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

WELL_KNOWN = "/.well-known/tollgate.txt"

_KEY = "tollgate-team="
_LOCALHOST_UNPROVABLE = f"{LOCALHOST} is the name of every machine itself: its ownership cannot be proved."


class Finding(Struct, frozen=True):
    """The result of a search for a proof.

    Not proven and not certain: a lookup failed, so the proof may still exist.
    """

    proven: bool
    by: Literal["dns", "well-known", ""] = ""
    certain: bool = True
    problems: tuple[str, ...] = ()


class Texts(Protocol):
    """What a search needs of DNS."""

    async def texts(self, name: str) -> list[str]:
        """Return the TXT records at a name; raise Unreachable if DNS does not answer."""


class Files(Protocol):
    """What a search needs of the web."""

    def url(self, host: str, path: str) -> str: ...

    async def get(self, host: str, path: str) -> bytes:
        """Return the body at a path; raise Refused, Missing or Unreachable without one."""


def record(team_id: str) -> str:
    """Return the text that proves that a domain belongs to this team."""
    return f"{_KEY}{team_id}"


def dns_name(domain: str) -> str:
    """Return the name at which the TXT record belongs."""
    return f"_tollgate.{domain}"


class Proofs:
    """Looks for proofs, in DNS and on the web at once."""

    def __init__(self, resolver: Texts, fetcher: Files, *, seconds: float = 6.0) -> None:
        self._resolver = resolver
        self._fetcher = fetcher
        self._seconds = seconds

    def well_known_url(self, domain: str) -> str:
        """Return the address of the file that would prove the domain."""
        return self._fetcher.url(domain, WELL_KNOWN)

    def how_to(self, domain: str, team_id: str) -> str:
        """What to publish and where, for both kinds of proof: one sentence, for use within a message."""
        if _is_localhost(domain):
            return _LOCALHOST_UNPROVABLE
        return (
            f"Publish {record(team_id)} as a TXT record at {dns_name(domain)} (or at {domain} itself), "
            f"or as a line of {self.well_known_url(domain)}, answered with 200 and without a redirect."
        )

    async def look(self, domain: str, team_id: str) -> Finding:
        """Look in all places at once; the first that has the proof is enough."""
        if _is_localhost(domain):
            return Finding(proven=False, problems=(_LOCALHOST_UNPROVABLE,))
        wanted = record(team_id)
        return await _first_proof(
            [
                self._in_dns(dns_name(domain), wanted),
                self._in_dns(domain, wanted, usual=False),
                self._in_file(domain, wanted),
            ]
        )

    async def _in_dns(self, name: str, wanted: str, *, usual: bool = True) -> Finding:
        try:
            async with asyncio.timeout(self._seconds):
                texts = {text.strip() for text in await self._resolver.texts(name)}
        except Unreachable as error:
            return _unknown(str(error))
        except TimeoutError:
            return _unknown(f"DNS did not answer for {name} within {self._seconds:g} s: try again later.")
        if wanted in texts:
            return Finding(proven=True, by="dns")
        if _names_another(texts):
            return _absent(f"The TXT record at {name} names another team: add one with {wanted}.")
        if not usual:
            return _absent()  # a domain without our record is no problem: the well-known URL is checked, too
        if texts:
            return _absent(f"No TXT record at {name} is exactly {wanted}: correct it.")
        return _absent(f"No TXT record at {name}: add one with {wanted}.")

    async def _in_file(self, domain: str, wanted: str) -> Finding:
        url = self.well_known_url(domain)
        try:
            async with asyncio.timeout(self._seconds):
                body = await self._fetcher.get(domain, WELL_KNOWN)
        except Unreachable as error:
            return _unknown(str(error))
        except TimeoutError:
            return _unknown(f"{url} did not answer within {self._seconds:g} s: try again later.")
        except (Missing, FetchRefused) as error:
            return _absent(str(error))
        lines = {line.strip() for line in body.decode("utf-8-sig", errors="replace").splitlines()}
        if wanted in lines:
            return Finding(proven=True, by="well-known")
        if _names_another(lines):
            return _absent(f"{url} names another team: add the line {wanted}.")
        return _absent(f"No line of {url} is exactly {wanted}: add it.")


async def _first_proof(looks: Iterable[Coroutine[None, None, Finding]]) -> Finding:
    tasks = [asyncio.create_task(look) for look in looks]
    waiting = set(tasks)
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task.result().proven:
                    return task.result()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    findings = [task.result() for task in tasks]
    return Finding(
        proven=False,
        certain=all(finding.certain for finding in findings),
        problems=tuple(problem for finding in findings for problem in finding.problems),
    )


def _absent(*problems: str) -> Finding:
    return Finding(proven=False, problems=problems)


def _unknown(problem: str) -> Finding:
    return Finding(proven=False, certain=False, problems=(problem,))


def _names_another(lines: Iterable[str]) -> bool:
    return any(line.startswith(_KEY) for line in lines)


def _is_localhost(domain: str) -> bool:
    return domain == LOCALHOST or domain.endswith("." + LOCALHOST)
