"""What a scrape shows, for tests that compare it with a list of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


@dataclass(frozen=True, slots=True)
class Exported:
    """One metric of a scrape. ``values`` are those of each label, except ``le``; ``buckets`` the bounds of every series
    of a histogram, with infinity."""

    kind: str
    values: Mapping[str, frozenset[str]]
    buckets: tuple[float, ...] = ()

    @property
    def labels(self) -> frozenset[str]:
        return frozenset(self.values)


def exported(text: str) -> Mapping[str, Exported]:
    """Parse a scrape in the Prometheus text format. The series of one metric must have the same labels and buckets."""
    found = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {frozenset(sample.labels) - {"le"} for sample in family.samples}
        assert len(labels) <= 1, f"series of {name} differ in their labels: {labels}"
        values = {
            label: frozenset(sample.labels[label] for sample in family.samples) for label in next(iter(labels), ())
        }
        found[name] = Exported(family.type, values, _buckets(name, family.samples))
    return found


def _buckets(name: str, samples: list[Sample]) -> tuple[float, ...]:
    bounds: dict[frozenset[tuple[str, str]], list[float]] = {}
    for sample in samples:
        if sample.name == f"{name}_bucket":
            series = frozenset(item for item in sample.labels.items() if item[0] != "le")
            bounds.setdefault(series, []).append(float(sample.labels["le"]))
    different = {tuple(each) for each in bounds.values()}
    assert len(different) <= 1, f"series of {name} differ in their buckets: {different}"
    return next(iter(different), ())
