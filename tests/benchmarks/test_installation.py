from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from benchmarks import installation
from benchmarks.installation import Installation
from sandpool.bench.child_process import Component, ComponentFailed
from sandpool.bench.environments import Place
from sandpool.engine.clock import SystemClock
from tests.support.control_plane import ControlPlane


class Plane:
    components: tuple[Component, ...] = ()


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    monkeypatch.setattr(installation, "_PAUSE", 0.01)
    controller = Component("controller", ["sh", "-c", "echo last words; exec sleep 100"], tmp_path / "log")
    node = Component("node", ["sleep", "100"], tmp_path / "node")
    plane, place = cast(ControlPlane, Plane()), cast(Place, None)
    return Installation(plane, controller, node, place, SystemClock())


async def test_work_is_cancelled_when_a_process_has_ended(there: Installation) -> None:
    there.controller.start()
    there.node.start()
    ended = False

    async def forever() -> None:
        nonlocal ended
        try:
            there.controller.wait_for("last words")
            there.controller.kill()
            await asyncio.Event().wait()
        finally:
            ended = True

    try:
        with pytest.raises(ComponentFailed, match="controller has ended\nlast words"):
            await there.working(forever())
        assert ended
    finally:
        there.node.stop()


async def test_finished_work_returns(there: Installation) -> None:
    there.controller.start()
    there.node.start()

    async def work() -> str:
        return "done"

    try:
        assert await there.working(work()) == "done"
    finally:
        there.node.stop()
        there.controller.stop()
