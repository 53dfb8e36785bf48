"""What the engine says about itself."""

from __future__ import annotations

from pathlib import Path

from sandpool import __version__
from sandpool.api.events import claim_expired
from sandpool.engine.lease import Election
from sandpool.engine.metrics import Metrics
from sandpool.engine.metrics_engine import show_build, show_events, show_leadership, show_news
from sandpool.engine.recorder import Recorder
from sandpool.engine.recorder_event import Reference
from sandpool.server.api_server import ApiServer
from sandpool.testing.clock import ManualClock


async def text(metrics: Metrics) -> str:
    content, _ = await metrics.render()
    return content.decode()


async def test_build() -> None:
    metrics = Metrics()
    show_build(metrics, commit="abc")
    assert f'git_commit="abc",git_version="{__version__}",go_version="python3.' in await text(metrics)


async def test_leadership(tmp_path: Path) -> None:
    server, metrics = ApiServer(tmp_path), Metrics()
    await server.start()
    election = Election(server.client(), "lease", "default", "me", ManualClock())
    show_leadership(metrics, election)
    assert 'leader_election_master_status{name="lease"} 0.0' in await text(metrics)

    async def work() -> None:
        assert 'leader_election_master_status{name="lease"} 1.0' in await text(metrics)

    await election.lead(work)
    assert 'leader_election_master_status{name="lease"} 0.0' in await text(metrics)
    await server.stop()


async def test_age_of_news() -> None:
    metrics, clock = Metrics(), ManualClock()
    for resource in ("pods", "sandboxes.agents.x-k8s.io"):
        show_news(metrics, resource, clock.monotonic)
    await clock.advance(90)
    assert 'sandpool_reflector_seconds_since_news{resource="pods"} 90.0' in await text(metrics)


async def test_events(tmp_path: Path) -> None:
    server, metrics = ApiServer(tmp_path), Metrics()
    await server.start()
    recorder = Recorder(server.client(), ManualClock(), "host")
    show_events(metrics, recorder)
    recorder.start()
    recorder.event(Reference("v1", "Pod", "p", "default"), claim_expired())
    recorder.event(Reference("v1", "Pod", "p", "nowhere"), claim_expired())
    await recorder.stop()
    assert "sandpool_events_written_total 1.0" in await text(metrics)
    assert "sandpool_events_dropped_total 1.0" in await text(metrics)
    await server.stop()
