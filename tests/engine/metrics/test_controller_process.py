"""Metrics of the process: build, leadership, watches and events."""

from __future__ import annotations

from pathlib import Path
from random import Random

from sandpool import __version__
from sandpool.api.events import claim_expired
from sandpool.engine.events import EventRecorder, ObjectReference
from sandpool.engine.leaderelection import LeaderElector
from sandpool.engine.metrics.controller import (
    export_build_info,
    export_event_counts,
    export_leadership,
    export_watch_age,
)
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.server.api_server import ApiServer
from sandpool.testing.clock import ManualClock


async def text(metrics: MetricsRegistry) -> str:
    content, _ = await metrics.render()
    return content.decode()


async def test_build_info_is_exported() -> None:
    metrics = MetricsRegistry()
    export_build_info(metrics, commit="abc")
    assert f'git_commit="abc",git_version="{__version__}",go_version="python3.' in await text(metrics)


async def test_leadership_is_exported(tmp_path: Path) -> None:
    server, metrics = ApiServer(tmp_path), MetricsRegistry()
    await server.start()
    election = LeaderElector(server.client(), "lease", "default", "me", ManualClock(), Random(1))
    export_leadership(metrics, election)
    assert 'leader_election_master_status{name="lease"} 0.0' in await text(metrics)

    async def work() -> None:
        assert 'leader_election_master_status{name="lease"} 1.0' in await text(metrics)

    await election.lead(work)
    assert 'leader_election_master_status{name="lease"} 0.0' in await text(metrics)
    await server.stop()


async def test_seconds_since_the_last_watch_message_are_exported() -> None:
    metrics, clock = MetricsRegistry(), ManualClock()
    for resource in ("pods", "sandboxes.agents.x-k8s.io"):
        export_watch_age(metrics, resource, clock.monotonic)
    await clock.advance(90)
    assert 'sandpool_reflector_seconds_since_news{resource="pods"} 90.0' in await text(metrics)


async def test_written_and_dropped_events_are_exported(tmp_path: Path) -> None:
    server, metrics = ApiServer(tmp_path), MetricsRegistry()
    await server.start()
    recorder = EventRecorder(server.client(), ManualClock(), "host")
    export_event_counts(metrics, recorder)
    recorder.start()
    recorder.event(ObjectReference("v1", "Pod", "p", "default"), claim_expired())
    recorder.event(ObjectReference("v1", "Pod", "p", "nowhere"), claim_expired())
    await recorder.stop()
    assert "sandpool_events_written_total 1.0" in await text(metrics)
    assert "sandpool_events_dropped_total 1.0" in await text(metrics)
    await server.stop()
