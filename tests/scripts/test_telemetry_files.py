"""The dashboard and the alert rules of deploy/: written from the definitions, understood by Prometheus, and each
alert fires where it should and nowhere else.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import telemetry_files
from parts.need import need
from tollgate.shm import metrics
from tollgate.shm.alerts import ALERTS
from tollgate.shm.metrics import MetricKind

NETWORK = {"family": "eth", "network": "mainnet"}
UPSTREAM = {**NETWORK, "upstream": "a"}
EVERY = 'family="eth", network="mainnet"'
MINUTES = 60
Series = dict[str, str]

# Series, and their values a minute: Prometheus' own notation, start+step.
FAILING: Series = {
    'tollgate_build_info{version="1", python="3.11"}': "1",
    f'tollgate_upstream_state{{{EVERY}, upstream="a", state="up"}}': "0",
    f'tollgate_upstream_state{{{EVERY}, upstream="a", state="down"}}': "1",
    f'tollgate_upstream_attempts_total{{{EVERY}, upstream="a", outcome="ok"}}': "0+600",
    f'tollgate_upstream_attempts_total{{{EVERY}, upstream="a", outcome="timeout"}}': "0+600",
    f'tollgate_calls_total{{{EVERY}, method="eth_call", outcome="ok"}}': "0+540",
    f'tollgate_calls_total{{{EVERY}, method="eth_call", outcome="upstream_timeout"}}': "0+60",
    f'tollgate_request_seconds_bucket{{{EVERY}, outcome="ok", le="2.5"}}': "0+90",
    f'tollgate_request_seconds_bucket{{{EVERY}, outcome="ok", le="10.0"}}': "0+100",
    f'tollgate_request_seconds_bucket{{{EVERY}, outcome="ok", le="+Inf"}}': "0+100",
    f"tollgate_network_head{{{EVERY}}}": "100",
    "tollgate_directory_stale_seconds": "90",
    "tollgate_spool_held_bytes": "4096",
    "tollgate_ledger_lag_bytes": "536870912",
    "tollgate_ledger_damaged_segments": "2",
    "tollgate_ledger_clock_doubted": "1",
    'tollgate_process_starts_total{process="worker-0"}': "1+1",
    # The clock of a test begins at 0: in an hour it ends in nine days and 23 hours.
    "tollgate_certificate_expiry_timestamp_seconds": "864000",
    'tollgate_nodes{state="gone"}': "1",
    "tollgate_shared_up": "0",
    'tollgate_trace_spans_total{outcome="exported"}': "0+100",
    'tollgate_trace_spans_total{outcome="failed"}': "0+1",
    "tollgate_metrics_dropped_total": "0+1",
}
HEALTH: Series = {
    **FAILING,
    f'tollgate_upstream_state{{{EVERY}, upstream="a", state="up"}}': "1",
    f'tollgate_upstream_state{{{EVERY}, upstream="a", state="down"}}': "0",
    f'tollgate_upstream_attempts_total{{{EVERY}, upstream="a", outcome="timeout"}}': "0+6",
    f'tollgate_calls_total{{{EVERY}, method="eth_call", outcome="upstream_timeout"}}': "0+6",
    # Errors of callers fire no alert.
    f'tollgate_calls_total{{{EVERY}, method="eth_call", outcome="rate_limited"}}': "0+5400",
    f'tollgate_request_seconds_bucket{{{EVERY}, outcome="ok", le="2.5"}}': "0+100",
    f"tollgate_network_head{{{EVERY}}}": "100+5",
    "tollgate_directory_stale_seconds": "0",
    "tollgate_spool_held_bytes": "0",
    "tollgate_ledger_lag_bytes": "4096",
    "tollgate_ledger_damaged_segments": "0",
    "tollgate_ledger_clock_doubted": "0",
    'tollgate_process_starts_total{process="worker-0"}': "1",
    "tollgate_certificate_expiry_timestamp_seconds": "8640000",
    'tollgate_nodes{state="gone"}': "0",
    "tollgate_shared_up": "1",
    'tollgate_trace_spans_total{outcome="failed"}': "7",
    "tollgate_metrics_dropped_total": "0",
}
# What each alert shows of its failure: its labels, and its summary with them filled in.
FIRES: Mapping[str, tuple[dict[str, str], str]] = {
    "TollgateNetworkWithoutUpstream": (NETWORK, "eth/mainnet has no upstream in rotation."),
    "TollgateUpstreamOutOfRotation": ({**UPSTREAM, "state": "down"}, "eth/mainnet: a is down."),
    "TollgateUpstreamFails": (UPSTREAM, "eth/mainnet: more than 20 % of attempts at a fail."),
    "TollgateCallsFail": (NETWORK, "eth/mainnet: more than 5 % of calls fail for want of an answer."),
    "TollgateSlow": (NETWORK, "eth/mainnet: 5 % of callers wait longer than 2.5 s."),
    "TollgateHeadStands": (NETWORK, "eth/mainnet: no new block for 15 minutes."),
    "TollgateStoreUnreachable": ({}, "The store has not answered for 90 seconds."),
    "TollgateRecordsHeld": ({}, "The disk refuses records: 4096 bytes are held in memory."),
    "TollgateLedgerLags": ({}, "512MiB of records wait in the spool."),
    "TollgateLedgerDamaged": ({}, "2 spool files are damaged and were put aside."),
    "TollgateClockDoubted": ({}, "The clock is far beyond what the ledger has seen."),
    "TollgateProcessRestarts": (
        {"process": "worker-0"},
        "worker-0 was started more than three times in 15 minutes.",
    ),
    "TollgateCertificateEnds": ({}, "The certificate ends in 9d 23h 0m 0s."),
    "TollgateNodeGone": ({}, "1 nodes are gone without having been stopped."),
    "TollgateLimitsNotShared": ({}, "Limits count for one node alone: Valkey is lost or slow."),
    "TollgateSpansLost": ({"outcome": "failed"}, "Spans are lost: failed."),
    "TollgateMetricsDropped": ({}, "Samples found no free cell."),
}
DOWN = "TollgateDown"
KNOWN = {alert.name: alert for alert in ALERTS}


@pytest.mark.parametrize("path", telemetry_files.files())
def test_file_is_what_the_definitions_specify(path: str) -> None:
    kept = (telemetry_files.ROOT / path).read_text(encoding="utf-8")
    assert kept == telemetry_files.files()[path], "run `make reference`"


def test_every_metric_is_on_the_dashboard_once() -> None:
    shown = [spec.name for _, specs in telemetry_files.rows() for spec in specs]
    assert sorted(shown) == sorted(spec.name for spec in metrics.ALL)


def page_names() -> set[str]:
    """Every name that the page has."""
    names = set()
    for spec in metrics.ALL:
        behind = ("_bucket", "_sum", "_count") if spec.kind is MetricKind.HISTOGRAM else ("",)
        names |= {spec.page_name + each for each in behind}
    return names


def named(text: str) -> set[str]:
    return set(re.findall(r"\btollgate_[a-z_]+", text))


def test_dashboard_names_only_metrics_and_labels_that_exist() -> None:
    board = json.loads(telemetry_files.dashboard())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    labels = {label for spec in metrics.ALL for label in spec.labels} | {"le"}
    for panel in panels:
        for target in panel["targets"]:
            assert named(target["expr"]) <= page_names(), panel["title"]
            (by,) = re.findall(r"by \(([^)]*)\)", target["expr"]) or [""]
            assert {each for each in by.split(", ") if each} <= labels
    for variable in board["templating"]["list"][1:]:
        assert named(variable["query"]) <= page_names()


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(telemetry_files.dashboard())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_rules_name_only_metrics_that_exist() -> None:
    for alert in ALERTS:
        assert named(alert.expression), alert.name
        assert named(alert.expression) <= page_names(), alert.name
        assert named(alert.action) <= page_names() | {spec.name for spec in metrics.ALL}, alert.name


def test_expressions_of_the_dashboard_are_promql(tmp_path: Path) -> None:
    """promtool reads expressions in rules alone, so each becomes one; Grafana fills the interval in."""
    promtool = need("promtool")
    board = json.loads(telemetry_files.dashboard())
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, expression in enumerate(expressions)
    ]
    file = tmp_path / "panels.yaml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    ran = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(expressions)} rules found" in ran.stdout


def test_rules_are_well_formed() -> None:
    rules = telemetry_files.ROOT / telemetry_files.RULES
    ran = subprocess.run([need("promtool"), "check", "rules", rules], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(ALERTS)} rules found" in ran.stdout


def expected(name: str, labels: Mapping[str, str], summary: str) -> dict[str, Any]:
    alert = KNOWN[name]
    return {
        "exp_labels": {**labels, "severity": alert.severity},
        "exp_annotations": {"summary": summary, "description": alert.action},
    }


def played(name: str, series: Series, firing: Mapping[str, tuple[dict[str, str], str]]) -> dict[str, Any]:
    """A test of promtool's: after an hour of these series, these alerts fire and all others do not."""
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": each, "values": f"{values}x{MINUTES}"} for each, values in series.items()],
        "alert_rule_test": [
            {
                "eval_time": f"{MINUTES}m",
                "alertname": alert.name,
                "exp_alerts": [expected(alert.name, *firing[alert.name])] if alert.name in firing else [],
            }
            for alert in ALERTS
        ],
    }


def test_each_alert_fires_on_its_failure_and_none_when_healthy(tmp_path: Path) -> None:
    assert FIRES.keys() | {DOWN} == KNOWN.keys()
    (tmp_path / "alerts.yaml").write_text(telemetry_files.rules(), encoding="utf-8")
    tests = [
        played("failing", FAILING, FIRES),
        played("health", HEALTH, {}),
        played("nothing", {}, {DOWN: ({}, "No Tollgate is scraped.")}),
    ]
    file = tmp_path / "tests.yaml"
    file.write_text(json.dumps({"rule_files": ["alerts.yaml"], "evaluation_interval": "1m", "tests": tests}))
    ran = subprocess.run([need("promtool"), "test", "rules", file], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
