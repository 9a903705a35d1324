"""The dashboard and the alert rules, written from the definitions of metrics and alerts by `make reference`.

A test fails when a file in deploy/ is not what this module writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from tollgate.shm import metrics as m
from tollgate.shm.alerts import ALERTS, AlertRule
from tollgate.shm.metrics import MetricKind, Spec

ROOT = Path(__file__).parents[1]
RULES = "deploy/prometheus/alerts.yaml"
DASHBOARD = "deploy/grafana/tollgate.json"
_MADE = "Written by `make reference` from src/tollgate/shm. Change it there."

# The rows of the dashboard; a metric in none of them goes into a last row.
ROWS: tuple[tuple[str, tuple[Spec, ...]], ...] = (
    ("Calls", (m.REQUESTS, m.CALLS, m.REQUEST_SECONDS, m.REFUSALS, m.IN_FLIGHT, m.CONNECTIONS, m.BUFFERED_BYTES)),
    ("Cache", (m.CACHE, m.CACHE_BYTES)),
    (
        "Upstreams",
        (
            m.UPSTREAM_STATE,
            m.UPSTREAM_ATTEMPTS,
            m.UPSTREAM_SECONDS,
            m.UPSTREAM_HEDGES,
            m.UPSTREAM_CONNECTIONS,
            m.UPSTREAM_PROBES,
            m.UPSTREAM_HEAD,
            m.NETWORK_HEAD,
            m.NETWORK_FINALIZED,
            m.REORGS,
            m.HEADS_LOST,
        ),
    ),
    ("WebSockets", (m.WS_CONNECTIONS, m.WS_NOTIFICATIONS, m.WS_CUT)),
    (
        "Ledger",
        (m.LEDGER_ROWS, m.LEDGER_LAG, m.SPOOL_HELD, m.LEDGER_DAMAGED, m.LEDGER_TORN, m.LEDGER_CLOCK),
    ),
    ("Grants", (m.DIRECTORY_ENTRIES, m.DIRECTORY_LOOKUPS, m.DIRECTORY_STALE_SECONDS)),
    ("Several nodes", (m.NODES, m.SHARED_UP, m.SHARED_NODES, m.SHARED_LEASES, m.SHARED_LOST)),
    (
        "Processes",
        (
            m.BUILD_INFO,
            m.WORKER_STARTS,
            m.PROCESS_CPU,
            m.PROCESS_MEMORY,
            m.PROCESS_DESCRIPTORS,
            m.CERTIFICATE_EXPIRY,
            m.TRACE_SPANS,
            m.DROPPED_LABELS,
        ),
    ),
)
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# The grid of a dashboard is 24 wide.
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3
_QUANTILES = (0.5, 0.95, 0.99)
_FILTERED = ("family", "network")


def rows() -> list[tuple[str, tuple[Spec, ...]]]:
    """All rows: every metric stands in one."""
    placed = {spec.name for _, specs in ROWS for spec in specs}
    rest = tuple(spec for spec in m.ALL if spec.name not in placed)
    return [*ROWS, *([("More", rest)] if rest else [])]


def rules() -> str:
    """The alert rules, as YAML: every string is written as JSON, which YAML reads too."""
    lines = [f"# {_MADE}", "groups:", "  - name: tollgate", "    rules:"]
    for alert in ALERTS:
        lines += _rule(alert)
    return "\n".join(lines) + "\n"


def _rule(alert: AlertRule) -> list[str]:
    def text(value: str) -> str:
        return json.dumps(value, ensure_ascii=False)

    return [
        f"      - alert: {alert.name}",
        f"        expr: {text(alert.expression)}",
        f"        for: {alert.held}",
        "        labels:",
        f"          severity: {alert.severity}",
        "        annotations:",
        f"          summary: {text(alert.summary)}",
        f"          description: {text(alert.action)}",
    ]


def dashboard() -> str:
    """The dashboard, as Grafana imports it."""
    board = {
        "title": "Tollgate",
        "uid": "tollgate",
        "description": _MADE,
        "tags": ["tollgate"],
        "editable": True,
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_datasource(), *map(_variable, _FILTERED)]},
        "panels": list(_panels()),
    }
    return json.dumps(board, indent=1, ensure_ascii=False) + "\n"


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}


def _variable(label: str) -> dict[str, Any]:
    return {
        "name": label,
        "type": "query",
        "label": label.capitalize(),
        "datasource": _SOURCE,
        "query": f"label_values({m.REQUESTS.page_name}, {label})",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> Iterator[dict[str, Any]]:
    numbers, top = count(1), 0
    for title, specs in rows():
        yield {
            "type": "row",
            "id": next(numbers),
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": top, "w": 24, "h": 1},
        }
        top += 1
        for place, spec in enumerate(specs):
            row, column = divmod(place, _COLUMNS)
            at = {"x": column * _WIDTH, "y": top + row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            yield {"id": next(numbers), "gridPos": at, **_panel(spec)}
        top += -(-len(specs) // _COLUMNS) * _HEIGHT


def _panel(spec: Spec) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": _title(spec),
        "description": spec.help,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": _unit(spec), "min": 0}, "overrides": []},
        "options": {"tooltip": {"mode": "multi", "sort": "desc"}, "legend": {"placement": "bottom"}},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for place, (expression, legend) in enumerate(queries(spec))
        ],
    }


def queries(spec: Spec) -> list[tuple[str, str]]:
    """A panel's queries, each with the legend of its lines."""
    shown = f"{{{{{'}} {{'.join(spec.labels)}}}}}" if spec.labels else spec.name.removeprefix("tollgate_")
    by = f" by ({', '.join(spec.labels)})" if spec.labels else ""
    series = spec.page_name + _matching(spec.labels)
    if spec.kind is MetricKind.COUNTER:
        return [(f"sum{by} (rate({series}[$__rate_interval]))", shown)]
    if spec is m.CERTIFICATE_EXPIRY:
        return [(f"min ({series}) - time()", "time left")]
    if spec.kind is MetricKind.GAUGE:
        return [(f"{'max' if spec.greatest else 'sum'}{by} ({series})", shown)]
    buckets = f"{spec.page_name}_bucket{_matching(spec.labels)}"
    by = f"by ({', '.join((*spec.labels, 'le'))})"
    return [
        (
            f"histogram_quantile({quantile}, sum {by} (rate({buckets}[$__rate_interval])))",
            f"p{quantile * 100:g} {shown}",
        )
        for quantile in _QUANTILES
    ]


def _matching(labels: Sequence[str]) -> str:
    chosen = ", ".join(f'{label}=~"${label}"' for label in labels if label in _FILTERED)
    return f"{{{chosen}}}" if chosen else ""


def _title(spec: Spec) -> str:
    title = spec.name.removeprefix("tollgate_").replace("_timestamp", "").replace("_", " ")
    return title.capitalize() + (" a second" if spec.kind is MetricKind.COUNTER else "")


def _unit(spec: Spec) -> str:
    if spec is m.PROCESS_CPU:
        return "percentunit"
    if spec.kind is MetricKind.COUNTER:
        return "ops"
    if spec.name.endswith("_bytes"):
        return "bytes"
    return "s" if spec.name.endswith("_seconds") else "short"


def files() -> dict[str, str]:
    """Path in the source tree -> text."""
    return {RULES: rules(), DASHBOARD: dashboard()}


def main() -> None:
    """Write the files into the source tree."""
    for path, text in files().items():
        target = ROOT / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
