"""The operator's resources: upstreams, nodes, processes, checks, all teams and their terms."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from tollgate.api.base import CreatedAt, Id, Limit, Moment, Page, Route, choice, count, text
from tollgate.api.billing import MAX_CAP
from tollgate.api.usage import By, Month, Usage

MAX_PER_SECOND = 1_000_000
MAX_PRICE = 1_000_000_000_000
STATES = ("active", "suspended", "capped")

Suspended = Annotated[bool, Meta(description="Whether its calls are refused.", examples=[True])]
Reason = Annotated[str, text("Why, for operators and the audit log.", "unpaid", min_length=0, max_length=200)]
PerSecond = Annotated[int | None, count("For all its calls together; null: no limit.", 500, 1, MAX_PER_SECOND)]
FreeRequests = Annotated[
    int | None, count("Free requests of a month; null: as in the settings.", 5_000_000, 0, MAX_PRICE)
]
Price = Annotated[
    int | None,
    count("Price of a million requests, in millionths of a US dollar; null: as in the settings.", 3_000_000, 0,
          MAX_PRICE),
]  # fmt: skip
Cap = Annotated[
    int | None,
    count("The operator's cap for a month, besides the team's own; null: no cap.", 500_000_000, 0, MAX_CAP),
]


class TermsChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to set for a team; omitted members keep their value."""

    suspended: Suspended | UnsetType = UNSET
    suspended_reason: Reason | UnsetType = UNSET
    requests_per_second: PerSecond | UnsetType = UNSET
    free_requests: FreeRequests | UnsetType = UNSET
    micros_per_million: Price | UnsetType = UNSET
    operator_cap_micros: Cap | UnsetType = UNSET


class TeamsQuery(Struct, frozen=True):
    """Which teams to list."""

    state: Annotated[
        str | None,
        Meta(
            description="Only teams in this state.",
            examples=["suspended"],
            extra_json_schema={"enum": list(STATES)},
        ),
    ] = None


class ServiceUsageQuery(Struct, frozen=True):
    """Which month, and how many teams."""

    month: Month | UnsetType = UNSET
    limit: Limit = 100


class TeamUsageQuery(Struct, frozen=True):
    """Which usage of a team to show. Its tokens and domains are not shown to operators."""

    month: Month | UnsetType = UNSET
    by: Annotated[str, choice("What the items are.", (By.NETWORK, By.METHOD, By.DAY))] = By.DAY


class OperatorTeam(Struct, frozen=True, kw_only=True):
    """A team, as operators see it."""

    id: Id = ""
    name: Annotated[str, Meta(description="The team's name.")]
    created_at: CreatedAt
    suspended_at: Annotated[Moment | None, Meta(description="Since when its calls are refused.")] = None
    suspended_reason: Reason = ""
    capped: Annotated[bool, Meta(description="Whether a cap stops its calls now (402).")] = False
    requests_per_second: PerSecond = None
    free_requests: FreeRequests = None
    micros_per_million: Price = None
    operator_cap_micros: Cap = None
    spending_cap_micros: Annotated[int | None, Meta(description="The cap that the team has chosen.")] = None
    usual_free_requests: Annotated[int, Meta(description="`free_requests` of the settings.")] = 0
    usual_micros_per_million: Annotated[int, Meta(description="The price of the settings.")] = 0
    billable_requests: Annotated[
        int | None, Meta(description="Of this month; null while the ledger cannot be reached.")
    ] = None
    cost_micros: Annotated[int | None, Meta(description="What they cost, in millionths of a US dollar.")] = None


class OperatorTeamPage(Page[OperatorTeam], frozen=True):
    """A page of the list of teams."""


class TeamSum(Struct, frozen=True):
    """Usage of one team in a month."""

    id: Id
    name: Annotated[str, Meta(description="Its name; its id if it was deleted.")]
    billable_requests: Annotated[int, Meta(description="Requests that are billed.")]
    cost_micros: Annotated[int, Meta(description="What they cost, in millionths of a US dollar.")]


class ServiceUsage(Struct, frozen=True):
    """Usage of all teams in a month."""

    month: Annotated[str, Meta(description="The calendar month.")]
    teams: Annotated[int, Meta(description="Teams with requests.")]
    billable_requests: Annotated[int, Meta(description="Requests that are billed.")]
    cost_micros: Annotated[int, Meta(description="What they cost, in millionths of a US dollar.")]
    items: Annotated[list[TeamSum], Meta(description="The first `limit` teams by cost.")]


class ShownUpstream(Struct, frozen=True, kw_only=True):
    """One upstream. Null: not known."""

    name: Annotated[str, Meta(description="Its name in the settings.")]
    state: Annotated[str, Meta(description="Its state, such as `up`.")]
    reason: Annotated[str, Meta(description="Why it is in this state.")]
    since: Annotated[float, Meta(description="When it entered this state, in seconds since 1970.")]
    head: Annotated[int | None, Meta(description="Its newest block.")]
    behind: Annotated[int, Meta(description="Requested blocks that it lacked.")]
    finalized: Annotated[int | None, Meta(description="Its newest finalized block.")]
    chain_id: Annotated[str | None, Meta(description="The chain id that it reports.")]
    probe_ms: Annotated[float, Meta(description="How long the last probe took.")]
    probe_calls: Annotated[float, Meta(description="Calls a minute that probing it takes now.")] = 0.0
    listening: Annotated[bool, Meta(description="Whether it announces new heads by WebSocket.")]
    calls: Annotated[int, Meta(description="Calls of the last minute, by all workers.")]
    failures: Annotated[int, Meta(description="How many of them failed.")]
    error_rate: Annotated[float | None, Meta(description="The share of calls that failed; null without calls.")]
    latency_ms: Annotated[float | None, Meta(description="Peak EWMA of the calls; null without any.")]
    p95_ms: Annotated[float | None, Meta(description="95th percentile of the calls.")]
    breaker: Annotated[
        str, Meta(description="The circuit breaker: `closed`, `half_open` or `open`, the worst of all workers.")
    ]
    open_workers: Annotated[int, Meta(description="Workers whose circuit breaker is open.")]
    in_flight: Annotated[int, Meta(description="Calls that wait for its answer.")]


class ShownNetwork(Struct, frozen=True, kw_only=True):
    """One network with its upstreams."""

    network: Annotated[str, Meta(description="`family/network`.")]
    head: Annotated[int | None, Meta(description="The newest block.")]
    finalized: Annotated[int | None, Meta(description="The newest finalized block.")]
    chain_id: Annotated[str | None, Meta(description="The chain id.")]
    upstreams: Annotated[tuple[ShownUpstream, ...], Meta(description="Its upstreams.")]


class UpstreamPage(Page[ShownNetwork], frozen=True):
    """All networks with their upstreams, in one page."""


class HistoryStep(Struct, frozen=True):
    """Fifteen minutes."""

    start: Annotated[Moment, Meta(description="When they start.")]
    state: Annotated[str, Meta(description="The worst state in this time.")]
    calls: Annotated[int, Meta(description="Calls.")] = 0
    failures: Annotated[int, Meta(description="How many of them failed.")] = 0
    behind: Annotated[int, Meta(description="Blocks that it lacked, at most.")] = 0
    latency_ms: Annotated[float | None, Meta(description="At most; null without calls.")] = None


class UpstreamHistory(Struct, frozen=True):
    """The health of one upstream over the last day."""

    network: Annotated[str, Meta(description="`family/network`.")]
    upstream: Annotated[str, Meta(description="Its name in the settings.")]
    steps: Annotated[list[HistoryStep], Meta(description="Steps of fifteen minutes, oldest first.")]


class UpstreamHistoryPage(Page[UpstreamHistory], frozen=True):
    """All upstreams, in one page."""


class Process(Struct, frozen=True):
    """A process of the service."""

    name: Annotated[str, Meta(description="Its name, such as `worker 1`.")]
    pid: Annotated[int, Meta(description="Its process id.")]
    started_at: Annotated[Moment, Meta(description="When it was started.")]
    cpu_seconds: Annotated[float, Meta(description="CPU time since then.")]
    memory_bytes: Annotated[int, Meta(description="Resident memory.")]
    restarts: Annotated[int, Meta(description="How often it was replaced since the service was started.")] = 0


class MachineState(Struct, frozen=True):
    """The processes of the service, and how far the collector is behind."""

    processes: Annotated[list[Process], Meta(description="Empty if the system does not report them.")]
    spool_segments: Annotated[int, Meta(description="Segments that wait for the collector.")] = 0
    spool_waiting_bytes: Annotated[int, Meta(description="Bytes in them that it has not read.")] = 0
    spool_waiting_since: Annotated[
        Moment | None, Meta(description="When one of them was last written; null: nothing waits.")
    ] = None


class CheckResult(Struct, frozen=True):
    """One check of the ledger."""

    name: Annotated[str, Meta(description="What was checked.")]
    ok: Annotated[bool, Meta(description="Whether it agrees.")]
    looked_at: Annotated[str, Meta(description="How much was compared.")] = ""
    differences: Annotated[list[str], Meta(description="What differs.")] = []


class Checks(Struct, frozen=True):
    """Whether spool, logs, usage and invoices agree."""

    ok: Annotated[bool, Meta(description="Whether all checks agree.")]
    checks: Annotated[list[CheckResult], Meta(description="Each check.")] = []


class OperatorNode(Struct, frozen=True):
    """A node."""

    id: Id
    name: Annotated[str, Meta(description="The name of its machine.")]
    roles: Annotated[list[str], Meta(description="`all`, or some of gateway, control, collector and prober.")]
    version: Annotated[str, Meta(description="Its version of Tollgate.")]
    state: Annotated[str, Meta(description="`up`, or `gone` after 30 seconds without a heartbeat.")]
    started_at: CreatedAt
    seen_at: Annotated[Moment, Meta(description="Its last heartbeat.")]
    spool_bytes: Annotated[int, Meta(description="Bytes in its spool that are not in the ledger yet.")]


class NodePage(Page[OperatorNode], frozen=True):
    """All nodes, in one page."""


UPSTREAMS = Route("GET", "/operator/upstreams", UpstreamPage)
HISTORY = Route("GET", "/operator/upstreams/history", UpstreamHistoryPage)
NODES = Route("GET", "/operator/nodes", NodePage)
PROCESSES = Route("GET", "/operator/processes", MachineState)
CHECK = Route("POST", "/operator/checks", Checks)
TEAMS = Route("GET", "/operator/teams", OperatorTeamPage)
TEAM = Route("GET", "/operator/teams/{name}", OperatorTeam)
SET_TERMS = Route("PATCH", "/operator/teams/{name}", OperatorTeam)
TEAM_USAGE = Route("GET", "/operator/teams/{name}/usage", Usage)
USAGE = Route("GET", "/operator/usage", ServiceUsage)
