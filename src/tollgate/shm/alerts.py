"""Prometheus alert rules over the metrics of `metrics.py`.

`deploy/prometheus/alerts.yaml` is written from this table. An expression names a metric by its definition, so a
renamed metric cannot leave a rule behind that never fires.
"""

from __future__ import annotations

from msgspec import Struct

from tollgate.shm import metrics as m

PAGE, TICKET = "page", "ticket"
"""How urgent: a person must look now, or in working hours."""


class AlertRule(Struct, frozen=True):
    """One rule. `held` is how long the expression must hold, as Prometheus writes durations."""

    name: str
    expression: str
    held: str
    severity: str
    summary: str
    action: str


_CALLS = f"sum by (family, network) (rate({m.CALLS.page_name}[5m]))"
_FAILED = (
    f'sum by (family, network) (rate({m.CALLS.page_name}{{outcome=~"upstream_.*|internal_error|overloaded"}}[5m]))'
)
_ATTEMPTS = f"sum by (family, network, upstream) (rate({m.UPSTREAM_ATTEMPTS.page_name}[5m]))"
_FAILED_ATTEMPTS = (
    f'sum by (family, network, upstream) (rate({m.UPSTREAM_ATTEMPTS.page_name}{{outcome!="ok"}}[5m]))'
)
_IN_ROTATION = f'sum by (family, network) ({m.UPSTREAM_STATE.page_name}{{state=~"up|unknown"}})'

ALERTS: tuple[AlertRule, ...] = (
    AlertRule(
        "TollgateDown",
        f"absent({m.BUILD_INFO.page_name})",
        "2m",
        PAGE,
        "No Tollgate is scraped.",
        "Look whether the service runs and whether Prometheus reaches server.metrics_host and metrics_port.",
    ),
    AlertRule(
        "TollgateNetworkWithoutUpstream",
        f"{_IN_ROTATION} == 0",
        "1m",
        PAGE,
        "{{ $labels.family }}/{{ $labels.network }} has no upstream in rotation.",
        "`tollgate upstreams` shows why each was taken out; add one, or ask its provider.",
    ),
    AlertRule(
        "TollgateUpstreamOutOfRotation",
        f'{m.UPSTREAM_STATE.page_name}{{state!~"up|unknown"}} == 1',
        "15m",
        TICKET,
        "{{ $labels.family }}/{{ $labels.network }}: {{ $labels.upstream }} is {{ $labels.state }}.",
        "`tollgate upstreams` shows its head and its failures.",
    ),
    AlertRule(
        "TollgateUpstreamFails",
        f"{_FAILED_ATTEMPTS} / {_ATTEMPTS} > 0.2 and {_ATTEMPTS} > 1",
        "10m",
        TICKET,
        "{{ $labels.family }}/{{ $labels.network }}: more than 20 % of attempts at {{ $labels.upstream }} fail.",
        f"{m.UPSTREAM_ATTEMPTS.page_name} by outcome shows how they fail.",
    ),
    AlertRule(
        "TollgateCallsFail",
        f"{_FAILED} / {_CALLS} > 0.05 and {_CALLS} > 1",
        "5m",
        PAGE,
        "{{ $labels.family }}/{{ $labels.network }}: more than 5 % of calls fail for want of an answer.",
        f"{m.CALLS.page_name} by outcome names the reason; docs/reference/errors.md explains it.",
    ),
    AlertRule(
        "TollgateSlow",
        "histogram_quantile(0.95, sum by (family, network, le) "
        f'(rate({m.REQUEST_SECONDS.page_name}_bucket{{outcome="ok"}}[5m]))) > 2.5',
        "10m",
        TICKET,
        "{{ $labels.family }}/{{ $labels.network }}: 5 % of callers wait longer than 2.5 s.",
        f"Compare {m.UPSTREAM_SECONDS.page_name} of its upstreams.",
    ),
    AlertRule(
        "TollgateHeadStands",
        f"changes({m.NETWORK_HEAD.page_name}[15m]) == 0 and {m.NETWORK_HEAD.page_name} > 0",
        "5m",
        TICKET,
        "{{ $labels.family }}/{{ $labels.network }}: no new block for 15 minutes.",
        "Either the chain has halted, or all upstreams have: compare with a block explorer.",
    ),
    AlertRule(
        "TollgateStoreUnreachable",
        f"{m.DIRECTORY_STALE_SECONDS.page_name} > 30",
        "1m",
        PAGE,
        "The store has not answered for {{ $value }} seconds.",
        "Beyond directory.stale_seconds calls are refused: look at the database and its disk.",
    ),
    AlertRule(
        "TollgateRecordsHeld",
        f"{m.SPOOL_HELD.page_name} > 0",
        "1m",
        PAGE,
        "The disk refuses records: {{ $value }} bytes are held in memory.",
        "Free space on the disk of data_dir; at ledger.held_bytes calls are refused.",
    ),
    AlertRule(
        "TollgateLedgerLags",
        f"{m.LEDGER_LAG.page_name} > 268435456",
        "10m",
        TICKET,
        "{{ $value | humanize1024 }}B of records wait in the spool.",
        "Look whether the collector runs and whether its disk keeps up: docs/ledger.md.",
    ),
    AlertRule(
        "TollgateLedgerDamaged",
        f"{m.LEDGER_DAMAGED.page_name} > 0",
        "1m",
        TICKET,
        "{{ $value }} spool files are damaged and were put aside.",
        "`tollgate doctor` names them: docs/ledger.md.",
    ),
    AlertRule(
        "TollgateClockDoubted",
        f"{m.LEDGER_CLOCK.page_name} > 0",
        "1m",
        TICKET,
        "The clock is far beyond what the ledger has seen.",
        "Set the clock right; until then no month is closed and no logs are dropped.",
    ),
    AlertRule(
        "TollgateProcessRestarts",
        f"increase({m.WORKER_STARTS.page_name}[15m]) > 3",
        "0m",
        TICKET,
        "{{ $labels.process }} was started more than three times in 15 minutes.",
        "The log of the service has the reason.",
    ),
    AlertRule(
        "TollgateCertificateEnds",
        f"{m.CERTIFICATE_EXPIRY.page_name} - time() < 14 * 86400",
        "1h",
        TICKET,
        "The certificate ends in {{ $value | humanizeDuration }}.",
        "Renew it; the new one is loaded without a restart.",
    ),
    AlertRule(
        "TollgateNodeGone",
        f'max({m.NODES.page_name}{{state="gone"}}) > 0',
        "5m",
        TICKET,
        "{{ $value }} nodes are gone without having been stopped.",
        "`tollgate nodes` names them. What a node leaves in its spool is collected when it is started again.",
    ),
    AlertRule(
        "TollgateLimitsNotShared",
        f"{m.SHARED_UP.page_name} == 0",
        "5m",
        TICKET,
        "Limits count for one node alone: Valkey is lost or slow.",
        "Check that the server of shared.url runs and answers; calls are served meanwhile.",
    ),
    AlertRule(
        "TollgateSpansLost",
        f'sum by (outcome) (increase({m.TRACE_SPANS.page_name}{{outcome!="exported"}}[15m])) > 0',
        "15m",
        TICKET,
        "Spans are lost: {{ $labels.outcome }}.",
        "Look whether telemetry.traces_url takes what it is sent, or lower telemetry.sample_ratio.",
    ),
    AlertRule(
        "TollgateMetricsDropped",
        f"increase({m.DROPPED_LABELS.page_name}[1h]) > 0",
        "0m",
        TICKET,
        "Samples found no free cell.",
        "This is a defect: please report it.",
    ),
)
