"""The chain of one network: whose blocks it follows; publishes its head, finality and reorganisations.

`follow` compares the chains of all who count and follows the one that `core/branches.py` chooses; `publish`
writes the result. No I/O and no clock: missing blocks are requested (`Fetch`), `now` is given.

The head never goes down without a reorganisation being published first. Where no upstream shows the highest head
any more, all went back (a reorganisation, at once), or those that had it are gone (it is given up after a while).

The successor of a killed prober finds a number in the shared status, and cannot know whether the block behind it
is still the same. So it first publishes that everything above what is final may have been replaced. It
publishes nothing before it has found as much of the chain as callers were shown, or has given that up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tollgate import log
from tollgate.core import branches, health
from tollgate.core.branches import DEEP, Claim, UpstreamChain
from tollgate.core.health import NOTHING, State
from tollgate.gateway.prober.upstream_monitor import UpstreamMonitor
from tollgate.shm import metrics
from tollgate.shm.upstream_status import NetworkStatus

DEPTH = 256
"""Blocks that are remembered."""


class CanonicalChain:
    """The network's newest blocks: hashes by number, without holes."""

    def __init__(self) -> None:
        self.head = -1
        """The number of the newest; -1 where nothing is known."""
        self._hashes: dict[int, str] = {}
        """From the parent of the oldest to the head."""

    @property
    def tip(self) -> str:
        """The hash of the newest."""
        return self._hashes.get(self.head, "")

    @property
    def lowest(self) -> int:
        """The number of the oldest of which the parent is known too, or of the first of all."""
        oldest = min(self._hashes, default=-1)
        return oldest + 1 if oldest > 0 else oldest

    def hash_of(self, number: int) -> str | None:
        """The hash of one of them; the parent of the oldest is known too."""
        return self._hashes.get(number)

    def begin(self, chain: UpstreamChain) -> None:
        """Take an upstream's chain for the network's, whatever was before."""
        self._hashes.clear()
        self._extend(chain, chain.tip)

    def follow(self, chain: UpstreamChain, ancestor: int) -> None:
        """Continue from a common block to an upstream's tip. After a gap nothing from before is kept."""
        known = self._hashes.get(ancestor)
        whole = all(number in chain.hashes for number in range(ancestor, chain.tip))
        if known is None or chain.hashes.get(ancestor) != known or not whole:
            self.begin(chain)
            return
        self._cut(ancestor)
        self._extend(chain, chain.tip, down_to=ancestor)

    def cut(self, number: int) -> bool:
        """Forget everything above a block; False where that block is not known."""
        if not self.lowest <= number <= self.head:
            return False
        self._cut(number)
        return True

    def know(self, chain: UpstreamChain) -> None:
        """Take over older blocks of an upstream, as far as they are the network's."""
        below = self.lowest - 1
        known = self._hashes.get(below)
        if known is not None and chain.hashes.get(below) == known:
            self._extend(chain, below)

    def _cut(self, number: int) -> None:
        self._hashes = {each: digest for each, digest in self._hashes.items() if each <= number}
        self.head = number

    def _extend(self, chain: UpstreamChain, top: int, *, down_to: int = 0) -> None:
        """Take over an upstream's blocks from `top` down, as far as they hang together; drop what is too old."""
        number = top
        while number >= down_to and number in chain.hashes:
            self._hashes[number] = chain.hashes[number]
            number -= 1
        self.head = max(self._hashes)
        self._hashes = {each: digest for each, digest in self._hashes.items() if each >= self.head - DEPTH}


# Blocks below the first head that are fetched at the start: a reorganisation is not deeper as a rule.
BACKFILL = 8
_log = log.get("prober")

Fetch = Callable[[UpstreamMonitor, Sequence[int]], None]
"""Requests blocks of an upstream, by number; they are in its chain when `follow` is called again."""


class HeadFollower:
    """The chain of one network."""

    def __init__(
        self, path: str, status: NetworkStatus, fetch: Fetch, count: Callable[[metrics.Spec], None]
    ) -> None:
        self._path = path
        self._status = status
        self._fetch = fetch
        self._count = count
        self._canonical = CanonicalChain()
        self._monitored: Sequence[UpstreamMonitor] = ()
        self._published = ""
        """The hash of the head that was published last; empty before the first."""
        self._short_since: float | None = None

    def is_overdue(self, now: float) -> bool:
        """Whether a head that no upstream shows any more has been waited for long enough."""
        return self._short_since is not None and now - self._short_since >= health.LOST_SECONDS

    def know(self, each: UpstreamMonitor) -> None:
        """Take over older blocks of an upstream, as far as they are the network's."""
        self._canonical.know(each.chain)

    # --- Following -------------------------------------------------------------------------------------

    def follow(
        self,
        monitored: Sequence[UpstreamMonitor],
        counting: Sequence[UpstreamMonitor],
        probed: UpstreamMonitor | None,
    ) -> list[Claim]:
        """Follow the network's chain; return the claims of all who count. `probed`: who has just answered."""
        self._monitored = monitored
        if not self._canonical.tip and counting:
            self._begin(max(counting, key=lambda each: each.sight.head))
        if not self._canonical.tip:
            return []
        claims: list[Claim] = []
        # Each round brings all nearer; the bound is for unforeseen cases.
        for _ in range(2 * len(monitored) + 2):
            claims, unclear = self._claims(counting)
            chosen = branches.choose(claims, self._canonical.head, unclear)
            if chosen is None:
                break
            # A chain that was not published yet cannot be reorganised.
            if self._published and branches.is_contested(chosen, self._canonical.head):
                self._reorganise(chosen)
            else:
                self._canonical.follow(self._named(chosen.name).chain, chosen.ancestor)
        self._note_disagreements(claims, probed)
        return claims

    def _begin(self, each: UpstreamMonitor) -> None:
        """Take an upstream's chain for the network's, at the start."""
        self._canonical.begin(each.chain)
        lowest = self._canonical.lowest
        # Of the first block of all, the hash is known from the second.
        if older := range(max(1, lowest - (1 if each.is_resting else BACKFILL)), lowest):
            self._fetch(each, older)

    def _claims(self, counting: Iterable[UpstreamMonitor]) -> tuple[list[Claim], int]:
        claims, unclear = [], 0
        canonical = self._canonical
        for each in counting:
            # Of one that is probed seldom, one block has to show whether the chain is still the same.
            missing = branches.missing(canonical.hash_of, canonical.head, each.chain, whole=not each.is_resting)
            if missing and each.comparable:
                self._fetch(each, missing)
                unclear += 1
            else:
                claims.append(branches.claim(each.name, canonical.hash_of, canonical.head, each.chain))
            if not missing:
                each.fetch_failures = 0
        return claims, unclear

    def _note_disagreements(self, claims: Iterable[Claim], probed: UpstreamMonitor | None) -> None:
        for claim in claims:
            each = self._named(claim.name)
            if not branches.is_contested(claim, self._canonical.head):
                each.disagrees(0)
            elif each is probed:
                each.disagrees(each.sight.disagreements + 1)

    # --- The shared status -------------------------------------------------------------------------------------

    def publish(self, claims: Sequence[Claim], now: float) -> None:
        """Publish head and finality; drop a head that is gone. After `follow` and all verdicts."""
        status, canonical = self._status, self._canonical
        agreed = [each for each in claims if not branches.is_contested(each, canonical.head)]
        if not agreed:
            self._short_since = None
            return
        best = max(agreed, key=lambda each: each.tip)
        if best.tip >= max(status.head, status.seen):
            self._short_since = None
            self._take_over()
        else:
            self._short_since = now if self._short_since is None else self._short_since
            went_back = all(self._named(each.name).retreats >= health.RETREATS for each in agreed)
            if health.given_up(self._short_since, now, all_went_back=went_back):
                self._lose(best, went_back=went_back)
            elif not self._published:
                return
        if best.tip >= status.head:
            reported = [each.sight.finalized for each in self._monitored if each.verdict.state == State.UP]
            finalized = health.finality(reported, canonical.head, status.finalized)
            status.publish(canonical.head, finalized, changed=canonical.tip != self._published)
            self._published = canonical.tip

    def _take_over(self) -> None:
        """Before the first publication, after a predecessor: what it saw may have been replaced since."""
        status = self._status
        if not self._published and status.head != NOTHING:
            message = "taking over from another prober: cached answers about blocks that are not final are dropped"
            _log.info(message, network=self._path, before=status.head, finalized=status.finalized)
            # What callers were shown is forgotten with this; the head that is published next is not below it.
            status.publish_reorg(status.finalized)

    def _reorganise(self, claim: Claim) -> None:
        """Leave the chain for another one."""
        deep = claim.ancestor == DEEP
        ancestor = (
            max(NOTHING, min(self._status.finalized, self._canonical.lowest - 1)) if deep else claim.ancestor
        )
        self._go_back(ancestor, "the chain was reorganised", metrics.REORGS, to=claim.tip)
        self._canonical.follow(self._named(claim.name).chain, ancestor)
        self._status.publish(self._canonical.head, self._still_final(ancestor), changed=True)
        self._published = self._canonical.tip

    def _lose(self, best: Claim, *, went_back: bool) -> None:
        """Go back to the highest block that is left."""
        if went_back:
            self._go_back(best.tip, "the chain went back", metrics.REORGS, to=best.tip)
        else:
            message = "the highest head is gone with its upstreams"
            self._go_back(best.tip, message, metrics.HEADS_LOST, to=best.tip)
        if not self._canonical.cut(best.tip):
            self._begin(self._named(best.name))
        self._status.publish(best.tip, self._still_final(best.tip), changed=True)
        self._published = self._canonical.tip

    def _go_back(self, ancestor: int, message: str, spec: metrics.Spec, *, to: int) -> None:
        status = self._status
        # Before our first publication nothing that is not final is known to be the same.
        same = ancestor if self._published else min(ancestor, status.finalized)
        _log.warning(message, network=self._path, before=status.head, ancestor=same, head=to)
        self._count(spec)
        status.publish_reorg(same)
        self._short_since = None
        for each in self._monitored:
            each.network_went_back(ancestor)

    def _still_final(self, ancestor: int) -> int:
        """What is final after a reorganisation. One that went deeper shows that nothing was."""
        return self._status.finalized if self._status.finalized <= ancestor else NOTHING

    def _named(self, name: str) -> UpstreamMonitor:
        return next(each for each in self._monitored if each.name == name)
