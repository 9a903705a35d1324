"""Transactions: sent to as many upstreams as is set, and never lost or answered twice.

A signed transaction that is sent again is still one transaction. So where an upstream leaves us in doubt it goes
to the next one, and "already known" from there means that our first attempt has arrived. A refusal from there may
mean the same ("nonce too low"): then the chain is queried before its sender gets a failure.

What is not signed by the caller (`eth_sendTransaction`) is not repeated; `exchange.py` does with it what is right.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from msgspec import Raw

from tollgate.chains.catalogue import Kind
from tollgate.chains.faults import Verdict
from tollgate.core import jsonrpc
from tollgate.core.shapes import ABSENT, Call, Reply, SentCall
from tollgate.errors import Refusal
from tollgate.gateway.messages import Trace
from tollgate.gateway.upstream.choice import Need
from tollgate.gateway.upstream.exchange import Exchange
from tollgate.gateway.upstream.failover import MAX_ATTEMPTS, Attempt, Failover
from tollgate.gateway.upstream.health import Upstream
from tollgate.gateway.upstream.hedging import AttemptOutcome

SIGNED = frozenset(
    {
        "eth_sendRawTransaction",
        "starknet_addInvokeTransaction",
        "starknet_addDeclareTransaction",
        "starknet_addDeployAccountTransaction",
    }
)
_RAW = "eth_sendRawTransaction"
_WITH_BLOBS = 3
_text = msgspec.json.Decoder(str).decode
_json = msgspec.json.encode


class Writes:
    """Sends the signed transactions of one network."""

    def __init__(self, exchange: Exchange, now: Callable[[], float]) -> None:
        self._exchange = exchange
        self._now = now
        self._unfinished: set[asyncio.Task[AttemptOutcome[Reply]]] = set()
        """Attempts whose transaction was accepted elsewhere: they run to their end."""

    async def send(self, call: Call, deadline: float, trace: Trace) -> AttemptOutcome[Reply]:
        """Send a transaction; the outcome for its sender."""
        exchange = self._exchange
        count = exchange.network.broadcast
        failover = exchange.failover(Need(call.method), deadline, max_attempts=MAX_ATTEMPTS + count - 1)
        sent = _Sent(call)
        try:
            while True:
                outcome = await self._round(sent, failover, trace, count)
                if outcome is None:
                    break
                if _is_done(outcome):
                    trace.upstream = outcome.upstream.name
                    return outcome
                if sent.with_verdict(Verdict.FINAL) or sent.with_verdict(Verdict.KNOWN):
                    break
                # The first upstreams did not get it, or we do not know: on to the next, one by one.
                count = 1
            return await self._settled(sent, failover, deadline, trace)
        finally:
            if sent.attempts:
                exchange.row.nudge()

    async def _round(
        self, sent: _Sent, failover: Failover, trace: Trace, count: int
    ) -> AttemptOutcome[Reply] | None:
        """Send it to so many at once; the first success, or the last failure; None: nobody is left."""
        step = failover.next(self._now())
        while step is not None and not isinstance(step, Attempt):
            await asyncio.sleep(step.seconds)
            step = failover.next(self._now())
        if step is None:
            return None
        steps = [step]
        while len(steps) < count and (other := failover.spare(self._now())) is not None:
            steps.append(other)
        sent.attempts += len(steps)
        attempts = {
            asyncio.create_task(self._attempt(each.upstream, sent, each.until, trace)): None for each in steps
        }
        try:
            return await self._first_success(attempts, sent, failover)
        finally:
            self._unfinished.update(attempts)
            for attempt in attempts:
                attempt.add_done_callback(self._unfinished.discard)

    async def _first_success(
        self, attempts: dict[asyncio.Task[AttemptOutcome[Reply]], None], sent: _Sent, failover: Failover
    ) -> AttemptOutcome[Reply]:
        while True:
            await asyncio.wait(attempts, return_when=asyncio.FIRST_COMPLETED)
            for attempt in [each for each in attempts if each.done()]:
                del attempts[attempt]
                outcome = attempt.result()
                if _is_done(outcome):
                    return outcome
                if outcome.failure is not None:
                    failover.failed(outcome.upstream, outcome.failure)
                else:
                    failover.faulted(outcome.upstream, outcome.verdict, self._now())
                    sent.answered.append(outcome)
            if not attempts:
                return outcome

    def _attempt(
        self, upstream: Upstream, sent: _Sent, until: float, trace: Trace
    ) -> Coroutine[Any, Any, AttemptOutcome[Reply]]:
        exchange = self._exchange
        # Not repeated by the connection itself: we must know how often it went out.
        once = Need("", repeatable=False)
        return exchange.attempt(
            upstream,
            sent.body,
            jsonrpc.decode_reply,
            lambda reply: exchange.judge(Kind.WRITE, reply),
            until,
            trace,
            once,
        )

    async def _settled(
        self, sent: _Sent, failover: Failover, deadline: float, trace: Trace
    ) -> AttemptOutcome[Reply]:
        """The outcome for the sender where no upstream has accepted it."""
        known, final = sent.with_verdict(Verdict.KNOWN), sent.with_verdict(Verdict.FINAL)
        # Somebody knew it before we came: that is for its sender to know, unless it was we who came before.
        ours = failover.in_doubt or sent.with_verdict(Verdict.ELSEWHERE) is not None
        tx_hash = transaction_hash(sent.call) if ours else ""
        if tx_hash:
            there = known or await self._found(tx_hash, deadline, trace)
            if there is not None:
                trace.upstream = there.upstream.name
                return AttemptOutcome(there.upstream, Reply(Raw(_json(tx_hash))))
        outcome = known or final
        if outcome is None and not failover.in_doubt:
            outcome = sent.last_error
        if outcome is None:
            raise failover.refusal(harmless=False)
        trace.upstream = outcome.upstream.name
        return outcome

    async def _found(self, tx_hash: str, deadline: float, trace: Trace) -> AttemptOutcome[Reply] | None:
        """The answer of an upstream whose chain, or pool of transactions, has it."""
        method = "eth_getTransactionByHash"
        body = _json(SentCall("2.0", 1, method, [Raw(_json(tx_hash))]))
        try:
            found = await self._exchange.send_call(body, deadline, trace, Need(method, tip=True))
        except Refusal:
            return None
        reply = found.answer
        is_there = reply is not None and reply.error is ABSENT and bytes(reply.result) != b"null"
        return found if is_there else None


class _Sent:
    """A transaction, and what became of it so far."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.body = jsonrpc.encode_call(call)
        self.attempts = 0
        self.answered: list[AttemptOutcome[Reply]] = []
        """Errors of upstreams."""

    def with_verdict(self, verdict: Verdict) -> AttemptOutcome[Reply] | None:
        """The first error that means this."""
        return next((each for each in self.answered if each.verdict is verdict), None)

    @property
    def last_error(self) -> AttemptOutcome[Reply] | None:
        """The last error that concerns the sender: none about a quota of ours."""
        errors = [each for each in self.answered if each.verdict is not Verdict.QUOTA]
        return errors[-1] if errors else None


def _is_done(outcome: AttemptOutcome[Reply]) -> bool:
    return outcome.answer is not None and outcome.answer.error is ABSENT


def transaction_hash(call: Call) -> str:
    """The hash of a signed transaction; empty where it cannot be computed here."""
    if call.method != _RAW or not isinstance(call.params, list) or not call.params:
        return ""
    # Needed only when something went wrong, and no worker need carry it before.
    from Crypto.Hash import keccak  # noqa: PLC0415

    try:
        raw = _text(call.params[0])
        signed = bytes.fromhex(raw[2:]) if raw[:2] in ("0x", "0X") else b""
    except (msgspec.MsgspecError, ValueError):
        return ""
    # With blobs it carries more along than its hash covers.
    if not signed or signed[0] == _WITH_BLOBS:
        return ""
    return f"0x{keccak.new(data=signed, digest_bits=256).hexdigest()}"
