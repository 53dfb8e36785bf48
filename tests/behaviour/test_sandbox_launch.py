"""Launching a sandbox (reference sections 3.2 to 3.5)."""

from __future__ import annotations

from sandpool.testing.world import World


async def test_a_sandbox_becomes_ready(world: World) -> None:
    await world.sandbox()
    assert await world.told() == {
        "Suspended": ("False", "NotSuspended", "Sandbox is not suspended"),
        "PodScheduled": ("True", "PodScheduled", ""),
        "Ready": ("True", "DependenciesReady", "Pod is Ready"),
    }
