"""A believable past for the demo's team: two months of traffic, tokens, domains, colleagues, an invoice.

Invented, the same for every demo but for its dates. The bulk is written as records of many calls each, the
newest minutes call by call; all of it goes through the rules that real records go through.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from tollgate.api.billing import BillingChange
from tollgate.api.domains import NewDomain
from tollgate.api.logs import AttemptVerdict
from tollgate.api.members import NewInvitation
from tollgate.api.tokens import NewToken, TokenChange
from tollgate.chains.catalogue import Catalogue
from tollgate.core import secrets, upstream_history
from tollgate.core.entries import AttemptEntry, CallEntry, Entry, KeptAttempts, encode
from tollgate.core.models import Domain, Team, Token
from tollgate.core.months import month_of, previous_month, start_of
from tollgate.core.people import Account
from tollgate.core.posting import Rules, post
from tollgate.core.roles import Role
from tollgate.core.subjects import Batch, Subjects
from tollgate.core.upstream_history import STEP_SECONDS, STEPS, HistoryStep, UpstreamHistory
from tollgate.lazy_module import LazyModule
from tollgate.processes.bootstrap import Bootstrap
from tollgate.processes.collector import billing_month
from tollgate.store.ledger import open_ledger

if TYPE_CHECKING:
    from tollgate.control import service_context
    from tollgate.control.plane import ControlPlane
    from tollgate.control.service_context import Actor
else:  # see `fill.py`
    service_context = LazyModule("tollgate.control.service_context")

HOUR, DAY = 3_600, 86_400
# How long ago the team was made.
SECONDS = 60 * DAY
CAP = 20_000_000
SINGLE_CALLS = 400
BUYER = "Example Labs Ltd\n1 Harbour Street\nDublin 2, Ireland"
_AGENTS = ("web3.py/7.14", "viem/2.57", "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0", "starknet.js/10.8")
# Network, method, its share, and how long it takes in microseconds.
_MIX = (
    ("starknet/mainnet", "starknet_call", 34, 21_000),
    ("eth/mainnet", "eth_call", 22, 18_000),
    ("starknet/mainnet", "starknet_getEvents", 11, 96_000),
    ("eth/mainnet", "eth_getLogs", 8, 142_000),
    ("eth/mainnet", "eth_blockNumber", 8, 3_000),
    ("starknet/sepolia", "starknet_blockNumber", 6, 4_000),
    ("starknet/sepolia", "starknet_call", 5, 24_000),
    ("eth/sepolia", "eth_getBalance", 4, 12_000),
    ("eth/sepolia", "eth_chainId", 2, 2_000),
)
_REFUSED = ("rate_limited", 429, -32005)
_FAILED = ("upstream_error", 502, -32603)


class TrafficSource(Struct, frozen=True):
    """Who calls: a token or a domain, and for how much of the traffic."""

    id: str
    name: str
    share: float
    networks: tuple[str, ...] = ()
    origin: bytes = b""


class HistoryClock:
    """The plane's clock, whose hands this turns."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


async def fill(
    bootstrap: Bootstrap, plane: ControlPlane, clock: HistoryClock, account: Account, team: Team, now: float
) -> None:
    """Give a team its past, and leave the clock at `now`. For a new demo alone: the ledger must be empty."""
    dice = random.Random(7)
    sources = await _things(plane, clock, account, team, now)
    clock.now = now
    _write(bootstrap, [*_bulk(team, sources, now, dice), *_singles(team, sources, now, dice)], now)
    past = _upstreams(bootstrap, now, dice)
    (bootstrap.data_dir / upstream_history.FILE).write_bytes(msgspec.json.encode(past))


def _upstreams(bootstrap: Bootstrap, now: float, dice: random.Random) -> list[UpstreamHistory]:
    """The last day of each upstream, as the prober would have written it down: up, but for some moments."""
    last = int(now) // STEP_SECONDS * STEP_SECONDS
    found = []
    for path, network in bootstrap.settings.networks.items():
        steps = []
        for back in range(STEPS - 1, 0, -1):
            calls = dice.randint(180, 420)
            steps.append(HistoryStep(last - back * STEP_SECONDS, "up", calls, 0, 0, dice.uniform(4, 40)))
        bad, late = dice.sample(steps, 2)
        bad.failures, late.state, late.behind = bad.calls // 30, "lagging", 4
        found += [UpstreamHistory(path, each.name, steps) for each in network.upstreams]
    return found


async def _things(
    plane: ControlPlane, clock: HistoryClock, account: Account, team: Team, now: float
) -> list[TrafficSource]:
    """Tokens, domains, colleagues and settings, made one after another over weeks."""
    actor = service_context.Actor(account)
    made: dict[str, Token] = {}
    soon = datetime.fromtimestamp(now + 6 * DAY, UTC)
    for days, wanted in (
        (58, NewToken("old-wallet", allow_in_url=True)),
        (51, NewToken("indexer", requests_per_second=500)),
        (44, NewToken("dapp-frontend", networks=("starknet/mainnet", "starknet/sepolia"))),
        (24, NewToken("ci", soon, networks=("eth/sepolia",), monthly_requests=500_000)),
    ):
        clock.now = now - days * DAY
        made[wanted.name], _ = await plane.tokens.create(actor, team.id, wanted)
    clock.now = now - 41 * DAY
    await plane.tokens.update(actor, team.id, made["old-wallet"].id, TokenChange(active=False))
    entry = await _domains(plane, clock, actor, team, now)
    await _people(plane, clock, actor, team, now)
    clock.now = now - 9 * DAY
    await plane.billing.change(
        actor, team.id, BillingChange(spending_cap_micros=CAP, buyer=BUYER, tax_number="IE1234567T")
    )
    return [
        TrafficSource(made["indexer"].id, "indexer", 0.55),
        TrafficSource(made["dapp-frontend"].id, "dapp-frontend", 0.27, ("starknet/mainnet", "starknet/sepolia")),
        TrafficSource(made["ci"].id, "ci", 0.03, ("eth/sepolia",)),
        TrafficSource(
            entry.id, entry.domain, 0.15, ("eth/mainnet", "starknet/mainnet"), b"https://app.example.com"
        ),
    ]


async def _domains(plane: ControlPlane, clock: HistoryClock, actor: Actor, team: Team, now: float) -> Domain:
    clock.now = now - 36 * DAY
    entry = await plane.domains.add(actor, team.id, NewDomain("example.com"))
    async with plane.context.store.changing() as records:
        await records.domains.replace(replace(entry, verified_at=now - 35 * DAY))
    clock.now = now - 12 * DAY
    await plane.domains.add(actor, team.id, NewDomain("example.org"))
    return entry


async def _people(plane: ControlPlane, clock: HistoryClock, actor: Actor, team: Team, now: float) -> None:
    for email, name, role, days in (
        ("grace@example.com", "Grace Hopper", Role.ADMIN, 33),
        ("alan@example.com", "Alan Turing", Role.DEVELOPER, 20),
        ("ada@example.com", "Ada Lovelace", Role.BILLING, 9),
    ):
        clock.now = now - days * DAY
        async with plane.context.store.changing() as records:
            person = await plane.accounts.add(records, actor, email, "", name=name, verified=True)
            await plane.teams.add_member(records, actor, team, person.id, role)
    clock.now = now - DAY
    await plane.invitations.create(actor, team.id, NewInvitation("katherine@example.com", Role.VIEWER))


# --- Traffic -----------------------------------------------------------------------------------------------


def _bulk(team: Team, sources: list[TrafficSource], now: float, dice: random.Random) -> Iterator[Entry]:
    """All hours since the beginning of the month before: days with their nights, weeks with their ends."""
    start = start_of(previous_month(month_of(now)))
    hours = int((now - start) // HOUR) + 1
    for count in range(hours):
        at = start + count * HOUR
        share = min(1.0, (now - at) / HOUR)
        day = math.sin((at % DAY) / DAY * 2 * math.pi - 2)
        weekend = 0.72 if int(at // DAY + 4) % 7 >= 5 else 1.0
        busy = 3_400 * (1 + 0.45 * day) * weekend * (0.7 + 0.6 * count / hours) * dice.uniform(0.9, 1.1)
        for source in sources:
            yield from _hour(team, source, at, busy * source.share * share, share, dice)


def _hour(
    team: Team, source: TrafficSource, at: float, calls: float, share_of_hour: float, dice: random.Random
) -> Iterator[Entry]:
    mix = [each for each in _MIX if not source.networks or each[0] in source.networks]
    whole = sum(each[2] for each in mix)
    for network, method, share, micros in mix:
        count = int(calls * share / whole)
        if count:
            yield _entry(team, source, at + 1_800 * share_of_hour, network, method, micros, dice, count=count)
    if dice.random() < 0.2:
        network, method, _, _ = dice.choice(mix)
        outcome = _REFUSED if dice.random() < 0.7 else _FAILED
        later, count = at + 2_000 * share_of_hour, dice.randint(1, 12)
        yield _entry(team, source, later, network, method, 1_200, dice, outcome, count=count)


def _singles(team: Team, sources: list[TrafficSource], now: float, dice: random.Random) -> Iterator[Entry]:
    """The newest minutes, call by call."""
    for count in range(SINGLE_CALLS, 0, -1):
        source = dice.choices(sources, [each.share for each in sources])[0]
        mix = [each for each in _MIX if not source.networks or each[0] in source.networks]
        network, method, _, micros = dice.choices(mix, [each[2] for each in mix])[0]
        outcome = None
        if dice.random() < 0.03:
            outcome = _REFUSED if dice.random() < 0.6 else _FAILED
        yield _entry(team, source, now - 2 * count - dice.random(), network, method, micros, dice, outcome)


def _entry(
    team: Team,
    source: TrafficSource,
    at: float,
    network: str,
    method: str,
    micros: int,
    dice: random.Random,
    outcome: tuple[str, int, int] | None = None,
    *,
    count: int = 1,
) -> Entry:
    name, status, code = outcome or ("ok", 200, None)
    refused = name == _REFUSED[0]
    cached = outcome is None and dice.random() < 0.41
    upstream = "" if cached or refused else "simulated"
    took = 900 if cached or refused else int(micros * dice.lognormvariate(0, 0.5)) * (12 if outcome else 1)
    attempts: KeptAttempts = 0 if cached or refused else 1
    if outcome and attempts:
        attempts = (
            AttemptEntry(upstream, 0, took // 3, AttemptVerdict.STATUS, 503),
            AttemptEntry(upstream, took // 3, took, AttemptVerdict.TIMEOUT),
        )
    call = CallEntry(method, name, code, dice.randint(60, 4_000))
    return Entry(
        at=at,
        request_id=secrets.new_id("req").removeprefix("req_").encode(),
        team_id=team.id,
        source_id=source.id,
        source_name=source.name,
        network=network,
        status=status,
        calls=(call,),
        request_bytes=dice.randint(90, 700),
        duration_micros=took,
        upstream=upstream,
        attempts=attempts,
        address=f"203.0.113.{dice.randint(1, 60)}",
        agent=dice.choice(_AGENTS).encode(),
        origin=source.origin,
        stands_for=count,
        cache="hit" if cached else "bypass" if refused else "miss",
    )


def _write(bootstrap: Bootstrap, entries: list[Entry], now: float) -> None:
    """Commit all of it at once, as the collector would."""
    price = bootstrap.settings.billing.price()
    catalogues = {family: Catalogue(family) for family in ("eth", "starknet")}
    batch = Batch(Subjects(lambda network, method: catalogues[network.partition("/")[0]].label(method)))
    batch.add([encode(entry) for entry in entries])
    rules = Rules(lambda _: price, billing_month)
    ledger = open_ledger(bootstrap.ledger_url)
    try:
        ledger.commit({}, batch.teams(), lambda opening: post(batch, opening, rules), now)
        while ledger.fold() or ledger.join():
            pass
    finally:
        ledger.close()
