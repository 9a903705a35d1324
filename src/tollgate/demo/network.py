"""One network of one simulated node: a chain, what was done to it, and how far this node lags behind it.

Owns the state of a network. Deeds (see `course.py`) belong to the chain and may be shared by several nodes;
lag and hold belong to this node alone. Which methods there are is the family's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tollgate.demo.chain import Chain
from tollgate.demo.chain_params import Method, RpcError, Sending, answer
from tollgate.demo.chain_view import View
from tollgate.demo.course import Accepted, Course, Deed, after, begin
from tollgate.demo.feed import Feed, Subscribing
from tollgate.demo.journal import Journal, OwnJournal, SharedJournal


class SimulatedNetwork:
    """Answers the methods of one network."""

    methods: Mapping[str, Method]
    by_name: bool
    """Whether the family takes parameters by name."""
    subscribing: Subscribing

    def __init__(self, chain: Chain, shared: Path | None = None) -> None:
        """Begin a chain, or join the nodes that share it through a journal in the folder `shared`."""
        self._journal: Journal = OwnJournal()
        if shared is not None:
            self._journal = SharedJournal(shared / f"{chain.family}-{chain.network}.jsonl", chain)
        self._course = begin(chain, self._journal.slack)
        self.clock: Callable[[], float] | None = None
        """What the time is in one's turn, where that may be later than when one was asked."""
        self.lag = 0
        """How many blocks this node stays behind the chain."""
        self.syncing = False
        """Whether it says so."""
        self.held: int | None = None
        """The block above which this node shows none."""
        self.feed = Feed(self.subscribing, self.view)

    @property
    def chain(self) -> Chain:
        """The chain with the forks of this moment."""
        return self.course.chain

    @property
    def course(self) -> Course:
        """The chain and all that is known to have been done to it."""
        for deed in self._journal.news():
            self._course = after(self._course, deed)
        return self._course

    def view(self, now: float) -> View:
        """Return what this node shows at a moment."""
        course = self.course
        tip = course.head(now)
        head = max(0, tip - self.lag)
        if self.held is not None:
            head = min(head, self.held)
        return View(course.chain, head, course.sent, course.slots, tip if self.syncing else None)

    def do(self, decide: Callable[[Course, float], Deed], now: float) -> None:
        """Do something to the chain: `decide` sees all that was done before, and when, or raises `RpcError`."""
        with self._journal.turn():
            # One may have waited for one's turn, and a deed must not be older than what others have shown.
            at = now if self.clock is None else max(now, self.clock())
            self._journal.add(decide(self.course, at))

    def answer(self, method: str, params: object, now: float) -> object:
        """Return the result of a call, or raise `RpcError`."""
        result = answer(self.methods, self.view(now), method, params, by_name=self.by_name)
        if isinstance(result, Sending):
            self._submit(result, now)
            return result.result
        return result

    def _submit(self, sending: Sending, now: float) -> None:
        def decide(course: Course, at: float) -> Deed:
            if sending.sent.hash in course.slots:
                raise RpcError(sending.known.code, sending.known.message)
            return Accepted(at, sending.sent)

        self.do(decide, now)
