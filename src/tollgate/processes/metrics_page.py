"""The page that Prometheus reads: all regions added up. Used by the metrics listener alone."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from tollgate.shm.metrics import ALL, BUCKETS_MICROSECONDS, GONE, Key, MetricKind, Regions, Spec

__all__ = ["CONTENT_TYPE_LATEST", "render"]


class _Totals(Collector):
    def __init__(self, totals: dict[Key, int]) -> None:
        self._totals = totals

    def collect(self) -> Iterable[Metric]:
        for spec in ALL:
            yield _family(spec, {key[1:]: value for key, value in self._totals.items() if key[0] == spec.name})


def _family(spec: Spec, values: dict[Key, int]) -> Metric:
    if spec.kind is MetricKind.HISTOGRAM:
        return _histogram(spec, values)
    make = CounterMetricFamily if spec.kind is MetricKind.COUNTER else GaugeMetricFamily
    family = make(spec.name, spec.help, labels=spec.labels)
    for labels, value in sorted(values.items()):
        if value != GONE or spec.kind is MetricKind.COUNTER:
            family.add_metric(labels, value / spec.divisor)
    return family


def _histogram(spec: Spec, values: dict[Key, int]) -> Metric:
    family = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
    for labels in sorted({key[:-1] for key in values}):
        count = 0
        buckets = []
        for bound in (*BUCKETS_MICROSECONDS, "+Inf"):
            count += values.get((*labels, str(bound)), 0)
            buckets.append((str(bound / 1e6) if isinstance(bound, int) else bound, float(count)))
        family.add_metric(labels, buckets, values.get((*labels, "sum"), 0) / 1e6)
    return family


def render(regions: Regions) -> bytes:
    """Render all metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Totals(regions.totals()))
    return generate_latest(registry)
