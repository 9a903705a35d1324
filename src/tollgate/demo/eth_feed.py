"""`eth_subscribe` on the simulated chain: heads, logs and pending transactions.

Owns what each kind of subscription is told, in the shapes and the order of geth: the logs of blocks that a
reorganisation took away come first, the newest block's first, marked as removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tollgate.demo.chain_params import Args, Method, RpcError, invalid, mapping
from tollgate.demo.chain_view import View, transaction_hash
from tollgate.demo.eth_blocks import INVALID_INPUT
from tollgate.demo.eth_logs import LogFilter, block_logs, log_filter
from tollgate.demo.eth_shapes import header, pending_transaction, text
from tollgate.demo.feed import Change, Note, Subscribing

if TYPE_CHECKING:
    from tollgate.demo.feed import Subscription

NOTIFICATION = "eth_subscription"


class _Kind:
    """A subscription that is told nothing at once."""

    def start(self, _view: View) -> Iterator[Note]:
        """Tell nothing."""
        yield from ()


class NewHeads(_Kind):
    """The header of each new block."""

    def changed(self, change: Change) -> Iterator[Note]:
        """Tell the new headers."""
        for height in change.added:
            yield Note(NOTIFICATION, header(change.new, height))


class Logs(_Kind):
    """The logs of each new block that pass a filter, and those that are gone."""

    def __init__(self, chosen: LogFilter) -> None:
        self._chosen = chosen

    def changed(self, change: Change) -> Iterator[Note]:
        """Tell the logs that are gone, then the new ones."""
        for height in reversed(change.orphaned):
            for log in block_logs(change.old, self._chosen, height):
                yield Note(NOTIFICATION, log | {"removed": True})
        for height in change.added:
            for log in block_logs(change.new, self._chosen, height):
                yield Note(NOTIFICATION, log)


class PendingTransactions(_Kind):
    """Each submitted transaction, by hash or whole."""

    def __init__(self, *, full: bool) -> None:
        self._full = full

    def changed(self, change: Change) -> Iterator[Note]:
        """Tell what was submitted."""
        chain = change.new.chain
        for move in change.received:
            shown = pending_transaction(chain, move) if self._full else text(transaction_hash(chain, move))
            yield Note(NOTIFICATION, shown)


def _open(_view: View, args: Args) -> Subscription:
    match args["kind"]:
        case "newHeads":
            return NewHeads()
        case "logs":
            return Logs(log_filter(mapping(args.get("options", {}), "options")))
        case "newPendingTransactions":
            return PendingTransactions(full=args.get("options") is True)
    raise invalid("no such subscription; there are newHeads, logs and newPendingTransactions")


SUBSCRIBING = Subscribing(
    methods={"eth_subscribe": Method(("kind", "options"), 1, _open)},
    unsubscribe="eth_unsubscribe",
    id_name="subscription",
    id_is_hex=True,
    unknown=RpcError(INVALID_INPUT, "subscription not found"),
)
