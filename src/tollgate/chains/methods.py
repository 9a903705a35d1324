"""Properties of methods and calls, as the rest of this package uses them.

Values only: no table, no reading of parameters, no rule.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Kind(Enum):
    """What a method does to the chain, and so how it may be repeated."""

    READ = "read"
    WRITE = "write"
    FILTER = "filter"
    """Lives on one node."""
    SUBSCRIBE = "subscribe"
    """Needs a WebSocket."""
    UNKNOWN = "unknown"


class Holds(Enum):
    """For how long an answer stays true."""

    NEVER = "never"
    FOREVER = "forever"
    TIP = "tip"
    """Until the next block."""
    BLOCK = "block"
    """As long as the block that the call names by number."""
    HASH = "hash"
    """For ever: the call names a hash, and a hash names one thing."""
    MINED = "mined"
    """As long as the block that the answer names for its transaction."""
    RANGE = "range"
    """As long as the last of the blocks that the call names."""


class Look(Enum):
    """Where an answer has the block that it is about, where that is looked for."""

    NOWHERE = "nowhere"
    VALUE = "value"
    """It is the number, as a quantity or as an integer."""
    HEADER = "header"
    """`number`: a block of `eth`."""
    MINED = "mined"
    """`blockNumber`: a transaction, a receipt, or traces of `eth`."""
    FINALITY = "finality"
    """`block_number` beside `status` or `finality_status`: a block or a receipt of `starknet`. That word changes
    once, when the block is accepted on L1, so what was answered before does not stay true."""


class Method(Struct, frozen=True):
    """A method of a catalogue."""

    name: str
    kind: Kind
    holds: Holds = Holds.NEVER
    block: int | None = None
    """Position of the block argument, or of the filter with the range, in positional parameters."""
    member: str = ""
    """Its name in parameters given as an object; empty: the family takes none."""
    state: bool = False
    """Whether it needs state, which pruned nodes lack for old blocks."""
    tip: bool = False
    """Whether its answer depends on where the head is. Worked out from the block argument where there is one."""
    hashes: bool = False
    """Whether a bare hash is accepted in place of the block's number (`eth`)."""
    look: Look = Look.NOWHERE


class Scope(Struct, frozen=True, gc=False):
    """Which blocks one call refers to."""

    holds: Holds
    """Resolved: a BLOCK that is `latest` has become TIP, one that is `pending` NEVER, `earliest` FOREVER."""
    tip: bool = False
    """Whether only an upstream at the head may answer: the head decides, or whether a hash is known yet."""
    number: int | None = None
    """The highest block number that it names."""
    oldest: int | None = None
    """The lowest block number that it names."""
    state: bool = False
    """Whether it needs state."""
    look: Look = Look.NOWHERE


class Keep(Struct, frozen=True, gc=False):
    """How an answer may be kept."""

    holds: Holds
    """NEVER, TIP, BLOCK (until a reorganisation below `number`) or FOREVER."""
    number: int = -1
    """The newest block that it is about; -1: none, or not known."""


UNREADABLE = Scope(Holds.NEVER, tip=True)
"""What is known of a call that cannot be read: nothing, so it is not kept, and the head may matter."""
