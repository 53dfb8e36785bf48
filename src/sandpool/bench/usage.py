"""Resources that processes have used: reconciles, CPU time and memory, measured or read from their metrics."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

from prometheus_client.parser import text_string_to_metric_families

from sandpool.api.metrics import CLAIM_CONTROLLER_STARTUP_LATENCY
from sandpool.engine.metrics.controller import RECONCILES

N = TypeVar("N", int, float)

# The names of every Prometheus client library.
_CPU = "process_cpu_seconds_total"
_MEMORY = "process_resident_memory_bytes"


@dataclass(frozen=True, slots=True)
class Usage:
    """``reconciles`` by controller; by process, ``cpu`` and ``starved`` in seconds on a CPU and waiting for one, and
    ``memory`` in resident bytes. Unknown values are absent."""

    reconciles: dict[str, int] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    starved: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    # Number and sum, in milliseconds, of the startup latencies that the claim controller has recorded.
    startups: tuple[float, float] = (0.0, 0.0)

    @property
    def mean_startup(self) -> float | None:
        """Mean startup latency by the controller's own metric, in milliseconds; None without a sample."""
        count, total = self.startups
        return total / count if count else None

    def since(self, before: Usage) -> Usage:
        """Return the usage since ``before``, with the current memory. A restarted process counts from its start."""
        return Usage(
            {key: _more(value, before.reconciles.get(key, 0)) for key, value in self.reconciles.items()},
            {key: _more(value, before.cpu.get(key, 0.0)) for key, value in self.cpu.items()},
            {key: _more(value, before.starved.get(key, 0.0)) for key, value in self.starved.items()},
            self.memory,
            (_more(self.startups[0], before.startups[0]), _more(self.startups[1], before.startups[1])),
        )

    def __or__(self, other: Usage) -> Usage:
        """Return the sum of two usages; reconciles of one name are added."""
        names = self.reconciles.keys() | other.reconciles.keys()
        return Usage(
            {name: self.reconciles.get(name, 0) + other.reconciles.get(name, 0) for name in sorted(names)},
            self.cpu | other.cpu,
            self.starved | other.starved,
            self.memory | other.memory,
            (self.startups[0] + other.startups[0], self.startups[1] + other.startups[1]),
        )


def usage_in(text: str, process: str) -> Usage:
    """Parse the metrics of a process in the Prometheus text format."""
    usage = Usage()
    count, total = 0.0, 0.0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == RECONCILES.name:
                controller = sample.labels["controller"]
                usage.reconciles[controller] = usage.reconciles.get(controller, 0) + round(sample.value)
            elif sample.name == f"{CLAIM_CONTROLLER_STARTUP_LATENCY.name}_count":
                count += sample.value
            elif sample.name == f"{CLAIM_CONTROLLER_STARTUP_LATENCY.name}_sum":
                total += sample.value
            elif sample.name == _CPU:
                usage.cpu[process] = sample.value
            elif sample.name == _MEMORY:
                usage.memory[process] = round(sample.value)
    return replace(usage, startups=(count, total))


def _more(now: N, before: N) -> N:
    return now - before if now >= before else now
