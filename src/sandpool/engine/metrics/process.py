"""Metrics of the process: build, leadership, age of the watches, events."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from typing import Final

from sandpool import __version__
from sandpool.api.metrics import BUILD_INFO, Metric
from sandpool.engine.events import EventRecorder
from sandpool.engine.leaderelection import LeaderElector
from sandpool.engine.metrics.registry import MetricsRegistry

LEADING: Final = Metric(
    "leader_election_master_status", "gauge", ("name",), "1 while this process holds the lease, 0 otherwise."
)
SLOW_PATHS: Final = Metric(
    "leader_election_slowpath_total", "counter", ("name",), "Renewals of the lease that had to read it first."
)
# The only metric that tells a dead watch from a quiet one.
SECONDS_SINCE_NEWS: Final = Metric(
    "sandpool_reflector_seconds_since_news",
    "gauge",
    ("resource",),
    "Time since the API last sent anything on a watch, bookmarks included.",
)
EVENTS_WRITTEN: Final = Metric("sandpool_events_written_total", "counter", (), "Events written to the API.")
EVENTS_DROPPED: Final = Metric("sandpool_events_dropped_total", "counter", (), "Events that were dropped.")


def export_build_info(
    metrics: MetricsRegistry, metric: Metric = BUILD_INFO, *, commit: str = "unknown", date: str = "unknown"
) -> None:
    """Export the build info. Dashboards join on these labels; ``go_version`` holds the version of Python."""
    labels = (
        __version__,
        commit,
        date,
        f"python{platform.python_version()}",
        sys.implementation.name,
        f"{sys.platform}/{platform.machine()}",
    )
    metrics.collect(metric, lambda: {labels: 1})


def export_leadership(metrics: MetricsRegistry, election: LeaderElector) -> None:
    metrics.collect(LEADING, lambda: {(election.name,): float(election.held)})
    metrics.collect(SLOW_PATHS, lambda: {(election.name,): election.slow_paths})


def export_watch_age(metrics: MetricsRegistry, resource: str, age: Callable[[], float]) -> None:
    """Export the age of a watch: ``age`` returns the seconds since the API last sent anything."""
    metrics.collect(SECONDS_SINCE_NEWS, lambda: {(resource,): age()})


def export_event_counts(metrics: MetricsRegistry, recorder: EventRecorder) -> None:
    metrics.collect(EVENTS_WRITTEN, lambda: {(): recorder.written})
    metrics.collect(EVENTS_DROPPED, lambda: {(): recorder.dropped})
