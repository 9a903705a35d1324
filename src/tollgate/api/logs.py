"""A team's request logs: one entry for each call, the filters of a list, and its routes."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

from msgspec import Meta, Struct

from tollgate.api.base import CSV, JSON_LINES, After, Limit, Moment, Page, Route, Since, Until, choice, text

MAX_METHOD, MAX_TEXT, MAX_NAME = 64, 256, 300
NETWORK = "[a-z0-9-]{1,32}/[a-z0-9-]{1,32}"
MAX_ATTEMPTS_KEPT = 8
"""Of more attempts at one call, the first seven and the last are kept."""


class LogFilters(Struct, frozen=True, kw_only=True):
    """Which entries to list; omitted members do not filter."""

    since: Since = None
    network: Annotated[
        str | None,
        Meta(
            description="Family/network, such as eth/mainnet. Only its calls are listed.",
            examples=["eth/mainnet"],
            extra_json_schema={"pattern": f"^{NETWORK}$"},
        ),
    ] = None
    method: Annotated[str | None, text("Only this method.", "eth_call", max_length=MAX_METHOD)] = None
    status: Annotated[
        int | None,
        Meta(
            description="Only this HTTP status.",
            examples=[429],
            extra_json_schema={"minimum": 100, "maximum": 599},
        ),
    ] = None
    errors: Annotated[bool, Meta(description="Only refusals and errors of nodes.", examples=[True])] = False
    token: Annotated[
        str | None,
        text("Only calls with this API token: its id, deleted or not, or its name.", "ci", max_length=MAX_NAME),
    ] = None
    request_id: Annotated[str | None, text("Only the calls of this request.", "req_1", max_length=MAX_TEXT)] = None
    domain: Annotated[
        str | None,
        text("Only calls of this whitelisted domain: its id or its name.", "example.com", max_length=MAX_NAME),
    ] = None
    until: Until = None


class LogQuery(LogFilters, frozen=True):
    """A page of the entries that match filters."""

    limit: Limit = 100
    after: After = None
    newer: Annotated[
        str | None,
        Meta(description="Instead of `after`: entries committed since the page with this `newer`, oldest first."),
    ] = None


class AttemptVerdict(IntEnum):
    """What became of an attempt. Records have the numbers; the API, the tool and the console show `label`."""

    OTHER = 0
    """None of these: also what a later version wrote."""
    ANSWERED = 1
    HEDGE_WON = 2
    """A hedge whose answer was used."""
    HEDGE_LOST = 3
    """Another attempt was quicker."""
    STATUS = 4
    """An HTTP status that is no answer."""
    NODE_ERROR = 5
    """A JSON-RPC error of the node."""
    TIMEOUT = 6
    QUOTA = 7
    """The upstream limits our rate."""
    OUT_OF_STEP = 8
    """An answer that contradicts the head of the chain."""
    CONNECTION = 9
    """Refused, reset or closed."""
    INVALID = 10
    """No JSON-RPC response."""
    TOO_LARGE = 11
    """A response over the limit."""
    BUSY = 12
    """Not sent: all connections to the upstream, or the memory for responses, were in use."""
    CANCELLED = 13
    """The client closed its connection, or the service stopped."""

    @classmethod
    def _missing_(cls, _value: object) -> AttemptVerdict:
        return cls.OTHER

    @property
    def label(self) -> str:
        return self.name.lower()


class Attempt(Struct, frozen=True, kw_only=True):
    """One attempt at an upstream."""

    upstream: Annotated[
        str, Meta(description="Its name; `upstream 1`, `upstream 2` where the operator shows none.")
    ] = ""
    start_us: Annotated[int, Meta(description="Microseconds from the beginning of the request.")] = 0
    end_us: Annotated[int, Meta(description="Microseconds from the beginning of the request.")] = 0
    verdict: Annotated[
        str,
        choice(
            "What became of it. `hedge_won`: a second attempt in parallel whose answer was used; `hedge_lost`: "
            "the slower of the two. `status`: an HTTP status that is no answer. `node_error`: a JSON-RPC error. "
            "`quota`: the upstream limits our rate. `out_of_step`: an answer that contradicts the head of the "
            "chain. `connection`: refused, reset or closed. `invalid`: no JSON-RPC. `busy`: not sent, all "
            "connections were in use. `cancelled`: the client closed its connection.",
            [verdict.label for verdict in AttemptVerdict],
        ),
    ] = ""
    status: Annotated[int | None, Meta(description="The HTTP status, where that is the verdict.")] = None


class Log(Struct, frozen=True, kw_only=True):
    """One call of the team; the calls of a batch share their request id."""

    id: Annotated[str, Meta(description="The entry's id.")]
    time: Annotated[Moment, Meta(description="When it was answered.")]
    request_id: Annotated[str, Meta(description="The id of the request: its `X-Request-Id`.")] = ""
    team: Annotated[str, Meta(description="The team's name.")] = ""
    token_id: Annotated[str | None, Meta(description="The API token that made it.")] = None
    token_name: Annotated[str | None, Meta(description="The token's name at that time.")] = None
    domain_id: Annotated[str | None, Meta(description="The whitelist entry that allowed it.")] = None
    domain: Annotated[str | None, Meta(description="The whitelisted root domain.")] = None
    address: Annotated[str, Meta(description="The client's address.")] = ""
    user_agent: Annotated[str | None, Meta(description="The client's `User-Agent`.")] = None
    origin: Annotated[str | None, Meta(description="The origin of the page that called.")] = None
    family: Annotated[str, Meta(description="The chain family.")] = ""
    network: Annotated[str, Meta(description="The network in its family.")] = ""
    method: Annotated[str | None, Meta(description="Null if it was refused before the method was known.")] = None
    status: Annotated[int, Meta(description="The HTTP status.")]
    outcome: Annotated[str, Meta(description="`ok`, `node_error`, or the reason of a refusal.")] = ""
    error_code: Annotated[int | None, Meta(description="The code of the JSON-RPC error.")] = None
    request_bytes: Annotated[int, Meta(description="The size of the request's body.")] = 0
    response_bytes: Annotated[int, Meta(description="The size of the answer's body.")] = 0
    duration_us: Annotated[int, Meta(description="Microseconds.")] = 0
    upstream: Annotated[str | None, Meta(description="The upstream that answered.")] = None
    attempts: Annotated[int, Meta(description="Attempts at upstreams.")] = 0
    trace: Annotated[
        list[Attempt],
        Meta(
            description="The attempts, in the order of their start: the first seven and the last.",
            extra_json_schema={"maxItems": MAX_ATTEMPTS_KEPT},
        ),
    ] = []
    cache: Annotated[
        str,
        Meta(
            description="Whether the cache answered; `coalesced`: it shared another call's upstream request.",
            extra_json_schema={"enum": ["hit", "miss", "coalesced", "bypass"]},
        ),
    ] = ""
    billable: Annotated[bool, Meta(description="Whether it is billed.")] = False
    cost_micros: Annotated[int, Meta(description="Millionths of a US dollar.")] = 0
    count: Annotated[
        int, Meta(description="How many requests it represents: more than one for refusals in quick succession.")
    ] = 1


class LogPage(Page[Log], frozen=True):
    """A page of the request logs."""

    newer: Annotated[str, Meta(description="Give it as `newer` for entries that arrived since.")] = ""


LIST = Route("GET", "/teams/{team}/logs", LogPage)
SHOW = Route("GET", "/teams/{team}/logs/{entry}", Log)
EXPORT = Route("GET", "/teams/{team}/logs/export/{format}", str, media_types=(CSV, JSON_LINES))
