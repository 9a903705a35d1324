"""One network under watch: asks its upstreams in time, follows its chain, and writes on the board.

The steps of `_settle`, after each answer: compare the chains of all who count, follow the one that
`core/branches.py` chooses, judge each upstream by `core/health.py`, publish. Every upstream is asked on its
own, so that one that hangs delays nobody.

The head never goes down without a reorganisation being published first. Where nobody shows the highest head any
more, that is because all went back (a reorganisation, at once), or because those who had it are gone (it is
given up after a while). The successor of a prober that died begins with the number on the board, and knows no
more than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

from tollgate import log, metrics
from tollgate.board import NOTHING, NetworkRow, State, UpstreamRow
from tollgate.chains import heads
from tollgate.chains.heads import Block
from tollgate.config import Health, Network, Upstream
from tollgate.core import branches, health
from tollgate.core.branches import DEEP, Claim
from tollgate.core.health import Verdict
from tollgate.gateway.listener import Listener
from tollgate.gateway.probing.prober import Asker, ProbeFailed, Wanted
from tollgate.gateway.probing.trunk import Trunk
from tollgate.gateway.probing.watched import Watched

# At the start the first head is believed when everybody has been asked, or after this.
WARM_SECONDS = 1.0
# Between two rounds that workers ask for, and before an upstream that went back is asked whether it is so.
HASTE_SECONDS = 0.05
# Blocks fetched from one upstream at once.
AT_ONCE = 8
# Blocks below the first head that are fetched at the start: a reorganisation is not deeper as a rule.
BACKFILL = 8
_log = log.get("prober")

MakeAsker = Callable[[str, Upstream], Asker]
MakeListener = Callable[[str, Upstream, Callable[[Block], None]], Listener]


class Watch:
    """One network."""

    def __init__(
        self,
        family: str,
        name: str,
        row: NetworkRow,
        make_asker: MakeAsker,
        make_listener: MakeListener,
        writer: metrics.Writer,
        now: Callable[[], float],
    ) -> None:
        self.family, self.name = family, name
        self.row = row
        self.watched: list[Watched] = []
        """In order of priority."""
        self.chain_id = ""
        self._make_asker = make_asker
        self._make_listener = make_listener
        self._writer = writer
        self._now = now
        self._blind = family not in heads.FAMILIES
        self._rules = health.Rules()
        self._probe_seconds = 1.0
        self._warm_at = now() + WARM_SECONDS
        self._trunk = Trunk()
        self._told = ""
        """The hash of the head that was published last."""
        self._short_since: float | None = None
        self._defect: BaseException | None = None
        self._nudges = row.nudges
        self._hasty_at = 0.0

    @property
    def warm(self) -> bool:
        """Whether all upstreams have been asked, or had their time."""
        return self._blind or self._now() >= self._warm_at or all(each.sight.tried for each in self.watched)

    def apply(
        self, network: Network, settings: Health, rows: Mapping[str, UpstreamRow], *, at_start: bool = False
    ) -> None:
        """Take over settings. What is known of an upstream that stays the same node is kept.

        What the board says of an upstream that is new here belongs to another one of its name, except at the
        start.
        """
        now = self._now()
        self._rules = health.Rules(heads.chain_id(network.chain_id), network.lag_blocks)
        self._probe_seconds = settings.probe_seconds
        before = {each.name: each for each in self.watched}
        self.watched = []
        for upstream in sorted(network.upstreams, key=lambda each: each.priority):
            each = before.get(upstream.name)
            if each is not None and each.is_same(upstream):
                del before[upstream.name]
            else:
                if not at_start:
                    rows[upstream.name].publish(State.UNKNOWN, NOTHING, NOTHING, 0)
                each = Watched(upstream, self._make_asker(self.family, upstream), rows[upstream.name], now)
            self._listen(each, upstream)
            each.change(upstream)
            each.asker.timeout_seconds = settings.timeout_seconds
            each.next_at = min(each.next_at, now + self._probe_seconds)
            self.watched.append(each)
        for gone in before.values():
            gone.close()
        self._settle()

    def _listen(self, each: Watched, upstream: Upstream) -> None:
        """Listen where there is something to listen to, on the connection that is there where it is the same."""
        if each.listener is not None and each.upstream.ws_url != upstream.ws_url:
            each.listener.stop()
            each.listener = None
        if each.listener is None and upstream.ws_url:
            each.listener = self._make_listener(self.family, upstream, lambda block: self._heard(each, block))

    def close(self) -> None:
        """End."""
        for each in self.watched:
            each.close()

    # --- Asking ----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Ask whom it is time to ask. Called some fifty times a second."""
        if self._defect is not None:
            raise self._defect
        if self._blind:
            return
        now = self._now()
        self._look_at_workers(now)
        for each in self.watched:
            if now >= each.next_at and (each.probing is None or each.probing.done()):
                each.next_at = now + self._probe_seconds
                each.probing = self._begun(self._probe(each, each.wanted(now), each.row.head))
        if self._short_since is not None and now - self._short_since >= health.LOST_SECONDS:
            self._settle()

    def sweep(self) -> None:
        """End questions that have taken too long."""
        for each in self.watched:
            each.asker.sweep()

    def _heard(self, each: Watched, block: Block) -> None:
        try:
            if each.heard(block, self._now()):
                self._settle()
        except Exception as defect:  # noqa: BLE001 - a listener goes on whatever happens; `tick` raises it
            self._defect = defect

    def _look_at_workers(self, now: float) -> None:
        """Ask everybody at once where a worker has sent a transaction, or has seen a block that we have not."""
        nudges = self.row.nudges
        if nudges != self._nudges and now >= self._hasty_at:
            self._hasty_at = now + HASTE_SECONDS
            self._nudges = nudges
            for each in self.watched:
                each.next_at = now

    async def _probe(self, each: Watched, wanted: Wanted, shown: int) -> None:
        try:
            report = await each.asker.probe(wanted)
        except ProbeFailed as failure:
            each.failed(failure)
            self._count(metrics.UPSTREAM_PROBES, each.name, "failed")
        else:
            now = self._now()
            each.reported(report, wanted, shown, now)
            self._count(metrics.UPSTREAM_PROBES, each.name, "ok")
            if 0 < each.retreats < health.RETREATS:
                each.next_at = min(each.next_at, now + HASTE_SECONDS)
        self._settle(each)

    def _fetch(self, each: Watched, numbers: Sequence[int]) -> None:
        """Fetch blocks of an upstream, unless that is under way already."""
        if each.fetching is None or each.fetching.done():
            each.fetching = self._begun(self._fetched(each, numbers))

    async def _fetched(self, each: Watched, numbers: Sequence[int]) -> None:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> Block | None:
            async with gate:
                try:
                    return await each.asker.block(number)
                except ProbeFailed:
                    return None

        blocks = [block for block in await asyncio.gather(*map(one, numbers)) if block is not None]
        whole = len(blocks) == len(numbers)
        each.fetched(blocks, whole=whole)
        each.fetching = None
        # Otherwise the next answer of anybody is the time to try again.
        if whole:
            self._trunk.know(each.chain)
            self._settle()

    def _begun(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._defect = task.exception() or self._defect

    # --- What follows ----------------------------------------------------------------------------------

    def _settle(self, probed: Watched | None = None) -> None:
        """Draw the conclusions from what is known now. `probed`: who has just answered."""
        now = self._now()
        self.chain_id = health.expected_chain([each.sight for each in self.watched], self._rules)
        counting = [each for each in self.watched if health.counts(each.sight, self.chain_id)]
        if not self._trunk.tip and counting and self.warm:
            self._begin(max(counting, key=lambda each: each.sight.head))
        claims: list[Claim] = []
        if self._trunk.tip:
            claims = self._follow(counting)
            self._note_disagreements(claims, probed)
        self._judge(now)
        self._publish(claims, now)

    def _begin(self, each: Watched) -> None:
        """Take an upstream's chain for the network's, at the start."""
        self._trunk.begin(each.chain)
        lowest = self._trunk.lowest
        if lowest > 1:
            self._fetch(each, range(max(1, lowest - BACKFILL), lowest))

    def _follow(self, counting: Iterable[Watched]) -> list[Claim]:
        """Follow whom the network follows, and say where everybody stands then."""
        claims: list[Claim] = []
        # Each turn brings everybody nearer; the bound is for what nobody has thought of.
        for _ in range(2 * len(self.watched) + 2):
            claims, unclear = self._claims(counting)
            chosen = branches.choose(claims, self._trunk.head, unclear)
            if chosen is None:
                break
            if branches.is_contested(chosen, self._trunk.head):
                self._reorganise(chosen)
            else:
                self._trunk.follow(self._named(chosen.name).chain, chosen.ancestor)
        return claims

    def _claims(self, counting: Iterable[Watched]) -> tuple[list[Claim], int]:
        claims, unclear = [], 0
        trunk = self._trunk
        for each in counting:
            missing = branches.missing(trunk.hash_of, trunk.head, each.chain)
            if missing and each.comparable:
                self._fetch(each, missing)
                unclear += 1
            else:
                claims.append(branches.claim(each.name, trunk.hash_of, trunk.head, each.chain))
            if not missing:
                each.fetch_failures = 0
        return claims, unclear

    def _note_disagreements(self, claims: Iterable[Claim], probed: Watched | None) -> None:
        for claim in claims:
            each = self._named(claim.name)
            if not branches.is_contested(claim, self._trunk.head):
                each.disagrees(0)
            elif each is probed:
                each.disagrees(each.sight.disagreements + 1)

    def _judge(self, now: float) -> None:
        verdicts = health.judge([each.sight for each in self.watched], self._rules)
        if self._blind:
            verdicts = [Verdict(State.UNKNOWN, "its family cannot be probed") for _ in verdicts]
        for each, verdict in zip(self.watched, verdicts, strict=True):
            if (each.sight.tried or self._blind) and each.judged(verdict, now):
                tell = _log.info if verdict.state == State.UP else _log.warning
                tell(
                    "an upstream changed its state",
                    network=f"{self.family}/{self.name}",
                    upstream=each.name,
                    state=verdict.state.name.lower(),
                    reason=verdict.reason,
                )

    # --- The network's head ----------------------------------------------------------------------------

    def _publish(self, claims: Sequence[Claim], now: float) -> None:
        """Say where the network is, and give up a head that is gone."""
        row, trunk = self.row, self._trunk
        agreed = [each for each in claims if not branches.is_contested(each, trunk.head)]
        if not agreed:
            self._short_since = None
            return
        best = max(agreed, key=lambda each: each.tip)
        if best.tip >= max(row.head, row.seen):
            self._short_since = None
        else:
            self._short_since = now if self._short_since is None else self._short_since
            went_back = all(self._named(each.name).retreats >= health.RETREATS for each in agreed)
            if health.given_up(self._short_since, now, all_went_back=went_back):
                self._lose(best, went_back=went_back)
        if best.tip >= row.head:
            reported = [each.sight.finalized for each in self.watched if each.verdict.state == State.UP]
            finalized = health.finality(reported, trunk.head, row.finalized)
            row.publish(trunk.head, finalized, changed=trunk.tip != self._told)
            self._told = trunk.tip

    def _reorganise(self, claim: Claim) -> None:
        """Leave the chain for another one."""
        deep = claim.ancestor == DEEP
        ancestor = max(NOTHING, min(self.row.finalized, self._trunk.lowest - 1)) if deep else claim.ancestor
        self._go_back(ancestor, "the chain was reorganised", metrics.REORGS, to=claim.tip)
        self._trunk.follow(self._named(claim.name).chain, ancestor)
        self.row.publish(self._trunk.head, self._still_final(ancestor), changed=True)
        self._told = self._trunk.tip

    def _lose(self, best: Claim, *, went_back: bool) -> None:
        """Go back to the highest block that is left."""
        if went_back:
            self._go_back(best.tip, "the chain went back", metrics.REORGS, to=best.tip)
        else:
            words = "the highest head is gone with its upstreams"
            self._go_back(best.tip, words, metrics.HEADS_LOST, to=best.tip)
        if not self._trunk.cut(best.tip):
            self._begin(self._named(best.name))
        self.row.publish(best.tip, self._still_final(best.tip), changed=True)
        self._told = self._trunk.tip

    def _go_back(self, ancestor: int, words: str, spec: metrics.Spec, *, to: int) -> None:
        _log.warning(words, network=f"{self.family}/{self.name}", before=self.row.head, ancestor=ancestor, head=to)
        self._count(spec)
        self.row.publish_reorg(ancestor)
        self._short_since = None
        for each in self.watched:
            each.network_went_back(ancestor)

    def _still_final(self, ancestor: int) -> int:
        """What is final after a reorganisation. One that went deeper shows that nothing was."""
        return self.row.finalized if self.row.finalized <= ancestor else NOTHING

    def _named(self, name: str) -> Watched:
        return next(each for each in self.watched if each.name == name)

    def _count(self, spec: metrics.Spec, *labels: str) -> None:
        self._writer.add(self._writer.cell(spec, self.family, self.name, *labels))
