"""With lean definitions, errors of a pod template appear in a condition of the Sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandpool.api.conditions import READY
from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.api.resource import Object
from sandpool.engine.clock import SystemClock
from sandpool.install.installer import Installer
from sandpool.install.manifests import InstallOptions, definitions
from sandpool.testing.backend import InProcessBackend
from sandpool.testing.world import World
from tests.support.backends import new_namespace


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    backend = await InProcessBackend.start(tmp_path)
    lean = definitions(InstallOptions(profile="lean"))
    await Installer(backend.client_for("users"), SystemClock(), lambda line: None, force=True).install(lean)
    world = World(backend, await new_namespace(backend))
    await world.start()
    yield world
    await world.stop()
    await backend.close()


def pod(**container: object) -> Object:
    return {"spec": {"containers": [{"name": "main", "image": "example.com/image:1", **container}]}}


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (pod(imgae="typo"), 'strict decoding error: unknown field "spec.containers[0].imgae"'),
        (pod(name="UPPER"), 'Pod "box" is invalid: spec.containers[0].name: Invalid value: "UPPER"'),
        (pod(ports=[{"containerPort": "x"}]), "spec.containers.ports.containerPort of type int32"),
    ],
)
async def test_pod_error_is_in_the_condition_of_the_sandbox(world: World, template: Object, said: str) -> None:
    await world.sandbox(podTemplate=template)

    async def refused() -> str:
        status, reason, message = (await world.conditions()).get(READY, ("", "", ""))
        return message if (status, reason) == ("False", "ReconcilerError") else ""

    assert said in await world.until(refused)


async def test_pod_error_is_in_the_condition_of_the_claim(world: World) -> None:
    await world.template(podTemplate=pod(imgae="typo"))
    await world.pool(1, filled=False)
    await world.claim("mine", env=[])

    async def refused() -> str:
        status, reason, message = (await world.conditions(SANDBOX_CLAIM, "mine")).get(READY, ("", "", ""))
        return message if (status, reason) == ("False", "ReconcilerError") else ""

    assert 'unknown field "spec.containers[0].imgae"' in await world.until(refused)


async def test_valid_pod_runs(world: World) -> None:
    await world.sandbox(podTemplate=pod(ports=[{"containerPort": 80}]), service=True)

    async def ready() -> bool:
        return (await world.conditions(SANDBOX)).get(READY, ("",))[0] == "True"

    await world.until(ready)
