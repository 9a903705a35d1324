"""The answers to a batch: split by the cache and by what its calls need, sent on as batches, told in its order.

Each call is a `Question` that ends with something told. A call that an upstream could not answer within a batch is
asked again elsewhere, alone. Knows no HTTP and writes nothing down.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from msgspec import Struct

from tollgate.chains.catalogue import Kind, Scope
from tollgate.chains.faults import Verdict
from tollgate.core import jsonrpc
from tollgate.core.shapes import Call, Replies
from tollgate.errors import Refusal
from tollgate.gateway.course import OutOfStep
from tollgate.gateway.inquiries import APART, Inquiries, Judge, Told
from tollgate.gateway.messages import Trace
from tollgate.gateway.peers import Peer
from tollgate.gateway.race import Outcome, Together
from tollgate.gateway.routing import Need


class Question(Struct, gc=False):
    """One call of a batch on its way."""

    call: Call
    key: bytes | None
    trace: Trace
    told: Told | None = None


class Asked(Struct, gc=False):
    """A question that goes to an upstream together with others."""

    question: Question
    scope: Scope
    judge: Judge


async def ask_many(inquiries: Inquiries, calls: Sequence[Call], deadline: float) -> list[Question]:
    """Get the answers to a batch, in its order."""
    questions = [Question(call, inquiries.key(call), Trace()) for call in calls]
    together, alone = _sorted(inquiries, questions)
    # One call is asked as one: not every upstream takes batches.
    parts: list[Coroutine[Any, Any, None]] = [
        _Chunk(inquiries, chunk, deadline).ask() if len(chunk) > 1 else _ask_alone(inquiries, chunk[0], deadline)
        for chunk in _chunks(inquiries, together)
    ]
    # After the chunks, whose questions they may join.
    parts += [_ask_alone(inquiries, question, deadline) for question in alone]
    if len(parts) == 1:
        await parts[0]
    elif parts:
        await Together(inquiries.loop, parts)
    return questions


def _sorted(inquiries: Inquiries, questions: list[Question]) -> tuple[list[Question], list[Question]]:
    """Answer from memory what can be; what is left may be asked together, or must be asked alone."""
    together: list[Question] = []
    alone: list[Question] = []
    asked: set[bytes] = set()
    stamp = inquiries.stamp()
    for each in questions:
        key = each.key
        each.told = inquiries.recall(key)
        if each.told is not None:
            each.trace.cache = "hit"
        elif each.call.method in APART:
            alone.append(each)
        elif key is None:
            together.append(each)
        elif key in asked or inquiries.waiting(key, stamp) is not None:
            alone.append(each)
        else:
            together.append(each)
            asked.add(key)
    return together, alone


def _chunks(inquiries: Inquiries, questions: list[Question]) -> list[list[Question]]:
    """Batches for upstreams: of calls that the same ones may be asked, reads apart from what is none."""
    picky = [peer for peer in inquiries.exchange.peers if peer.picky]
    groups: dict[tuple[bool, ...], list[Question]] = {}
    for each in questions:
        method = each.call.method
        group = (method in inquiries.repeatable, *[peer.takes(method) for peer in picky])
        groups.setdefault(group, []).append(each)
    size = inquiries.batch_calls
    return [group[start : start + size] for group in groups.values() for start in range(0, len(group), size)]


async def _ask_alone(inquiries: Inquiries, question: Question, deadline: float) -> None:
    try:
        question.told = await inquiries.ask(question.call, question.key, deadline, question.trace)
    except Refusal as refusal:
        question.told = refusal


class _Chunk:
    """Calls that are asked of one upstream at once."""

    def __init__(self, inquiries: Inquiries, questions: list[Question], deadline: float) -> None:
        self._inquiries = inquiries
        self._deadline = deadline
        self._questions = questions

    async def ask(self) -> None:
        """Ask, and let others share what is answered."""
        inquiries, stamp = self._inquiries, self._inquiries.stamp()
        led = [
            (each, each.key, inquiries.lead(each.call, each.key, stamp, each.trace))
            for each in self._questions
            if each.key is not None
        ]
        asked = [self._asked(each) for each in self._questions]
        try:
            await self._ask(asked)
            for each in asked:
                if each.question.key is not None:
                    inquiries.keep(each.question.key, each.scope, each.question.told, stamp)
        finally:
            for question, key, mine in led:
                inquiries.settle(key, mine, question.told)

    def _asked(self, question: Question) -> Asked:
        scope = self._inquiries.scope(question.call)
        return Asked(question, scope, self._inquiries.judge(question.call.method, scope))

    async def _ask(self, asked: list[Asked]) -> None:
        exchange, trace = self._inquiries.exchange, Trace()
        need = self._need(asked)
        body = jsonrpc.encode_batch([each.question.call for each in asked])
        try:
            outcome = await exchange.ask_batch(body, len(asked), self._deadline, trace, need)
        except Refusal as refusal:
            for each in asked:
                each.question.told = refusal
                each.question.trace.upstream, each.question.trace.attempts = trace.upstream, trace.attempts
            return
        finally:
            if any(each.judge.kind is Kind.WRITE for each in asked):
                exchange.row.nudge()
        again = self._told(asked, outcome, trace, need)
        if again:
            await Together(
                self._inquiries.loop, [self._ask_elsewhere(each, outcome.peer, verdict) for each, verdict in again]
            )

    def _need(self, asked: list[Asked]) -> Need:
        methods = [each.question.call.method for each in asked]
        oldest = [each.scope.oldest for each in asked if each.scope.state and each.scope.oldest is not None]
        numbers = [each.scope.number for each in asked if each.scope.number is not None]
        return Need(
            methods[0],
            self._inquiries.repeatable.issuperset(methods),
            any(each.scope.tip for each in asked),
            min(oldest, default=None),
            number=max(numbers, default=None),
        )

    def _told(
        self, asked: list[Asked], outcome: Outcome[Replies], trace: Trace, need: Need
    ) -> list[tuple[Asked, Verdict | None]]:
        """Take over the answers; those that are to be asked again elsewhere, None: not fit to be told."""
        assert outcome.answer is not None  # noqa: S101 - an outcome without a refusal has one
        again: list[tuple[Asked, Verdict | None]] = []
        for each, reply in zip(asked, outcome.answer.items, strict=True):
            question = each.question
            question.trace.upstream, question.trace.attempts = outcome.peer.name, trace.attempts
            question.told = reply
            try:
                verdict = each.judge(reply)
            except OutOfStep:
                again.append((each, None))
                continue
            each.judge.note(outcome.peer)
            if verdict is not Verdict.FINAL and need.repeatable:
                again.append((each, verdict))
        return again

    async def _ask_elsewhere(self, asked: Asked, peer: Peer, verdict: Verdict | None) -> None:
        """Ask again for a call that an upstream could not answer; its words stand where nobody knows better."""
        question, inquiries = asked.question, self._inquiries
        if verdict is Verdict.QUOTA:
            inquiries.exchange.spare(peer)
        try:
            question.told = await inquiries.inquire(
                question.call, asked.scope, self._deadline, question.trace, [peer] if verdict else []
            )
        except Refusal as refusal:
            if verdict is None or verdict is Verdict.QUOTA:
                question.told = refusal
            else:
                question.trace.upstream = peer.name
