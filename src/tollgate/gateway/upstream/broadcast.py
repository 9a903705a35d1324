"""Transactions: sent to as many upstreams as is set, and never lost or answered twice.

A signed transaction that is sent again is still one transaction. So where an upstream leaves us in doubt it goes
to the next one, and "already known" from there means that our first attempt has arrived. A refusal from there may
mean the same ("nonce too low"): then the chain is queried before its sender gets a failure.

What is not signed by the caller (`eth_sendTransaction`) is not repeated; `attempts.py` does with it what is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, field

from tollgate.chains.catalogue import Kind
from tollgate.chains.faults import Verdict
from tollgate.core import jsonrpc
from tollgate.core.shapes import ABSENT, Call, Reply, SentCall
from tollgate.errors import Refusal
from tollgate.gateway.messages import Route
from tollgate.gateway.upstream.attempts import AttemptOutcome, Attempts
from tollgate.gateway.upstream.choice import Requirements
from tollgate.gateway.upstream.exchange import Exchange
from tollgate.gateway.upstream.failover import MAX_ATTEMPTS, NextAttempt
from tollgate.lazy_module import LazyModule

if TYPE_CHECKING:
    from Crypto.Hash import keccak
else:  # needed only after a failure
    keccak = LazyModule("Crypto.Hash.keccak")

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


class Broadcast(Attempts[Reply], eq=False, kw_only=True):
    """The attempts at one transaction: several at first, then one by one, until one upstream accepts it."""

    call: Call
    count: int
    """Upstreams that get it at once."""
    _errors: list[AttemptOutcome[Reply]] = field(default_factory=list)
    """Errors of upstreams."""
    _looking: Attempts[Reply] | None = None
    """The look whether the chain has it."""

    # We must know how often it went out.
    resends = False

    def _send(self, step: NextAttempt, now: float) -> None:
        """Send it to so many at once; later on, to one."""
        steps = [step]
        while len(steps) < self.count and (other := self.parallel(now)) is not None:
            steps.append(other)
        self.count = 1
        for attempt in [self._begin(each, now) for each in steps]:
            attempt.pool.start(attempt)

    def _take(self, outcome: AttemptOutcome[Reply]) -> None:
        if outcome.failure is None and outcome.verdict is Verdict.FINAL and outcome.answer.error is ABSENT:
            self._over(outcome)
            return
        if outcome.failure is not None:
            self.failed(outcome.upstream, outcome.failure)
        else:
            self.faulted(outcome.upstream, outcome.verdict, self.exchange.now())
            self._errors.append(outcome)
        if self._under_way:
            return
        if self._with_verdict(Verdict.FINAL) or self._with_verdict(Verdict.KNOWN):
            self._give_up()
        else:
            # The first upstreams did not get it, or we do not know: on to the next, one by one.
            self.start()

    def _give_up(self) -> None:
        """No upstream has accepted it: find out what its sender is to know."""
        # The node knew it before: an error for the sender, unless an earlier attempt of ours delivered it.
        ours = self.in_doubt or self._with_verdict(Verdict.ELSEWHERE) is not None
        tx_hash = transaction_hash(self.call) if ours else ""
        known = self._with_verdict(Verdict.KNOWN)
        if not tx_hash:
            self._settle(known or self._with_verdict(Verdict.FINAL))
        elif known is not None:
            self._accepted(known, tx_hash)
        else:
            self._look_for(tx_hash)

    def _look_for(self, tx_hash: str) -> None:
        """Look whether an upstream's chain, or pool of transactions, has it."""

        def looked(found: AttemptOutcome[Reply] | Refusal) -> None:
            if (
                not isinstance(found, Refusal)
                and found.answer.error is ABSENT
                and bytes(found.answer.result) != b"null"
            ):
                self._accepted(found, tx_hash)
            else:
                self._settle(self._with_verdict(Verdict.FINAL))

        exchange, method = self.exchange, "eth_getTransactionByHash"
        self._looking = Attempts(
            exchange,
            Requirements(method, tip=True),
            self.deadline,
            body=_json(SentCall("2.0", 1, method, [Raw(_json(tx_hash))])),
            read=jsonrpc.decode_reply,
            validator=lambda reply, _: exchange.verdict_of(Kind.READ, reply),
            plain=True,
            route=self.route,
            done=looked,
        )
        self._looking.start()

    def _accepted(self, there: AttemptOutcome[Reply], tx_hash: str) -> None:
        self._over(AttemptOutcome(there.upstream, Reply(Raw(_json(tx_hash)))))

    def _settle(self, outcome: AttemptOutcome[Reply] | None) -> None:
        if outcome is None and not self.in_doubt:
            # The last error that concerns the sender: none about a quota of ours.
            outcome = next((each for each in reversed(self._errors) if each.verdict is not Verdict.QUOTA), None)
        if outcome is None:
            self._over(self.refusal(harmless=False))
        else:
            self._over(outcome)

    def _with_verdict(self, verdict: Verdict) -> AttemptOutcome[Reply] | None:
        """The first error that means this."""
        return next((each for each in self._errors if each.verdict is verdict), None)

    def _over(self, result: AttemptOutcome[Reply] | Refusal) -> None:
        self._request_probe()
        super()._over(result)

    def cancel(self) -> None:
        self._request_probe()
        super().cancel()
        if self._looking is not None:
            self._looking.cancel()

    def _request_probe(self) -> None:
        if self._attempts:
            self.exchange.status.request_probe()


def broadcast(
    exchange: Exchange,
    call: Call,
    deadline: float,
    route: Route,
    done: Callable[[AttemptOutcome[Reply] | Refusal], None],
) -> Broadcast:
    """The attempts at a transaction, to as many upstreams at once as its network sets."""
    count = exchange.network.broadcast
    return Broadcast(
        exchange,
        Requirements(call.method),
        deadline,
        max_attempts=MAX_ATTEMPTS + count - 1,
        body=jsonrpc.encode_call(call),
        read=jsonrpc.decode_reply,
        validator=lambda reply, _: exchange.verdict_of(Kind.WRITE, reply),
        plain=True,
        route=route,
        done=done,
        call=call,
        count=count,
    )


def transaction_hash(call: Call) -> str:
    """The hash of a signed transaction; empty where it cannot be computed here."""
    if call.method != _RAW or not isinstance(call.params, list) or not call.params:
        return ""
    try:
        raw = _text(call.params[0])
        signed = bytes.fromhex(raw[2:]) if raw[:2] in ("0x", "0X") else b""
    except (msgspec.MsgspecError, ValueError):
        return ""
    # With blobs it carries more along than its hash covers.
    if not signed or signed[0] == _WITH_BLOBS:
        return ""
    return f"0x{keccak.new(data=signed, digest_bits=256).hexdigest()}"
