"""Properties of methods and calls, as the rest of this package uses them.

Values only: no table, no reading of parameters, no rule.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Kind(Enum):
    """How a method may be repeated, and what it needs to be answered."""

    READ = "read"
    WRITE = "write"
    FILTER = "filter"
    """Lives on one node."""
    SUBSCRIBE = "subscribe"
    """Needs a WebSocket."""
    UNKNOWN = "unknown"


class Effect(Enum):
    """What a method does, where that does not depend on its arguments."""

    CHAIN = "reads the chain"
    """Heads, headers, fees, hashes, the node itself: nothing of one contract, account or transaction."""
    OWN = "reads what its caller has made"
    """Filters and subscriptions: their ids are of use to the caller that was given them only."""
    ANY = "reads any contract or transaction"
    SENDS = "sends a signed transaction"
    STEERS = "steers the node, writes its files or uses its keys"


class Contract(Struct, frozen=True):
    """Reads the state or the events of the addresses in one argument."""

    position: int = 0
    name: str = ""
    """The argument's name in parameters given as an object; empty: the family takes none."""
    member: str = ""
    """The member of the argument that holds the addresses; empty: the argument is the address."""
    overrides: int | None = None
    """From this position on, arguments change the state that the call sees."""


class Block(Struct, frozen=True):
    """Reads a block: the chain, and whole transactions too unless the argument at this position is `false`."""

    full: int


class Follows(Struct, frozen=True):
    """Subscribes to what the first argument names."""

    chain: tuple[str, ...]
    """Names with which it reads the chain."""
    events: str
    """The name with which it reads the events of `contract`; with any other it reads what any contract does."""
    contract: Contract


class Cost(Enum):
    """What a call takes from a node."""

    CHEAP = "cheap"
    """A look-up, or an execution within the bounds of a block."""
    EXPENSIVE = "expensive"
    """Executes blocks again, or walks through a state, an index or all that waits; most of `debug_` is of this
    kind, and no page needs the rest."""


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
    does: Effect | Contract | Block | Follows
    cost: Cost
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
