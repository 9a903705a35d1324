"""Proofs of ownership in the TXT records of a real DNS server, on loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from parts.dns import nameserver
from parts.processes import alive
from tollgate.control.outbound import DnsResolver, Fetcher
from tollgate.control.proofs import Finding, Proofs, dns_name, record

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.e2e

TEAM = "team_1"
PROOF = record(TEAM)
TEXTS = {
    dns_name("text.example"): ["unrelated", PROOF],
    "rooted.example": ["v=spf1 -all", "tollgate-,team=team_1"],
    dns_name("crowded.example"): [*(f"{number:03d}-{'x' * 200}" for number in range(30)), PROOF],
}


@pytest.mark.parametrize(
    "domain",
    ["text.example", "rooted.example", "crowded.example"],
    ids=["beside another record", "at the domain itself, in two strings", "too long for UDP"],
)
async def test_txt_record_proves(tmp_path: Path, domain: str) -> None:
    addresses: dict[str, list[str]] = {domain: []}
    with nameserver(tmp_path, addresses=addresses, texts=TEXTS) as server:
        resolver = DnsResolver([server.address])
        found = await Proofs(resolver, Fetcher(resolver, allow_private=False)).look(domain, TEAM)
    assert found == Finding(proven=True, by="dns")


async def test_nameserver_is_gone_afterwards_and_its_port_can_be_used_again(tmp_path: Path) -> None:
    with nameserver(tmp_path, texts={"a.example": ["one"]}) as first:
        assert await DnsResolver([first.address]).texts("a.example") == ["one"]
        assert first.questions() == [("TXT", "a.example")]
    assert not alive(first.pid)
    with nameserver(tmp_path, texts={"a.example": ["two"]}, port=first.port) as second:
        assert await DnsResolver([second.address]).texts("a.example") == ["two"]
