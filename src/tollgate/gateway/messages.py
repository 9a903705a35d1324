"""Request and Answer: what the steps of the gateway hand on to each other. Values, no behaviour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import force_setattr

from tollgate.chains.catalogue import Catalogue
from tollgate.core.entries import MAX_TEXT_BYTES, AttemptEntry, CallEntry, Entry, KeptAttempts
from tollgate.core.methods import Policy
from tollgate.core.pricing import OwnPrice
from tollgate.errors import Refusal
from tollgate.gateway.tracing import Span
from tollgate.settings.model import UpstreamSettings


class KnownCaller(Protocol):
    """What is recorded of a caller, and whose filters it uses."""

    team_id: str
    source_id: str
    source_name: str
    cap: int | None
    price: OwnPrice | None
    payer: str
    shows: bool
    filters_of: str


class ServedNetwork(Struct, frozen=True):
    """One served network."""

    family: str
    name: str
    policy: Policy
    catalogue: Catalogue
    upstreams: tuple[UpstreamSettings, ...]
    broadcast: int = 1
    hedge: bool = True
    cache: bool = True
    chain_id: str = ""
    """As it is set; empty: not known here."""
    path: str = ""
    """`family/name`, as tokens and messages name it; worked out."""
    reads: frozenset[str] = frozenset()
    """Methods that may be repeated; worked out."""

    def __post_init__(self) -> None:
        force_setattr(self, "path", f"{self.family}/{self.name}")
        force_setattr(self, "reads", self.catalogue.reads)


class Route(Struct, eq=False):
    """The way that a call took."""

    started: float = 0.0
    """When its request started."""
    cache: str = "bypass"
    """Where the answer came from, as the caller's team is told: hit, miss, coalesced, bypass."""
    upstream: str = ""
    """The upstream that answered, or was called last."""
    attempts: int = 0
    trace: tuple[AttemptEntry, ...] = ()
    """Those of them that have ended, by their start: the first seven and the last."""
    kept: KeptAttempts = 0
    """What the record keeps of them: their number, where the rest follows from the outcome."""
    charge: Callable[[int], None] | None = None
    """Counts calls to upstreams beyond the first against the caller's limits, or refuses them."""
    extra: int = 0
    """How many of those there were."""
    holder: str = ""
    """Which caller holds the connections to upstreams that it needs; empty: the service itself."""
    span: Span | None = None
    """Of the request that it belongs to; attempts become its children. None: not traced."""
    counted: str = ""
    """What metrics count as `cache`; empty: what the team is told."""


class Request:
    """One HTTP request under /x/, or one WebSocket message: what was read, and how it was answered."""

    # Defaults on the class: most requests never set them.
    body = b""
    network: ServedNetwork | None = None
    path_token: bytes | None = None
    refusal: Refusal | None = None
    """Set where the request is refused already, but its body must still be read past."""
    keep_alive = True
    held = 0
    """Bytes of its body that the budget counts."""
    started = 0.0
    digest: bytes | None = None
    """Of the token that it carries, once that is known to be one."""
    span: Span | None = None
    connection: Any
    """Where it came from: takes its answer (`answered`), where that is not ready at once."""
    admission: Any = None
    """What lets the next request of its connection take the fast path, once its caller is known."""
    rates = b""
    """What it found of its limits, as the header lines of its answer."""
    caller: KnownCaller | None = None
    """Set once it is known: from then on the request is recorded."""
    calls: Sequence[CallEntry] = ()
    """The outcome of each call."""
    route = Route()
    """Of its one call; a batch has one for each."""
    work: Any = None
    """The call or batch that it has become, once its answer leaves."""
    status: int
    """Of its answer, once that is there."""

    def __init__(self, method: bytes, headers: dict[bytes, bytes], peer: str, request_id: bytes) -> None:
        self.method = method
        self.headers = headers
        self.peer = peer
        self.request_id = request_id
        self.origin = headers.get(b"origin")

    def entry(self, at: float, micros: int, address: str) -> Entry:
        """What is recorded of it, once its caller is known and its answer is there."""
        caller, network, route = self.caller, self.network, self.route
        assert caller is not None  # noqa: S101 - checked at the edge
        assert network is not None  # noqa: S101 - the intake refuses what has none
        return Entry(
            at=at,
            team_id=caller.team_id,
            source_id=caller.source_id,
            network=network.path,
            source_name=caller.source_name,
            status=self.status,
            cap=caller.cap,
            price=caller.price,
            payer=caller.payer,
            calls=tuple(self.calls),
            duration_micros=micros,
            request_bytes=len(self.body),
            request_id=self.request_id,
            upstream=route.upstream,
            attempts=route.kept,
            cache=route.cache,
            address=address,
            agent=self.headers.get(b"user-agent", b"")[:MAX_TEXT_BYTES],
            origin=(self.origin or b"")[:MAX_TEXT_BYTES],
        )

    def record(self, journal: Any, _at: bytes, now: float) -> None:
        """Nothing is encoded yet: the journal takes what is recorded of it."""
        journal.take(self.entry(journal.at, int((now - self.started) * 1e6), journal.address(self)))


class Answer(Struct, frozen=True, gc=False):
    """What goes back: a status, header lines ready to send, a body."""

    status: int
    body: bytes
    headers: bytes = b""
