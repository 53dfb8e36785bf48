"""A sandbox runs out of memory: everything that its user asks afterwards says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from sandpool.api.conditions import STATE_LOST, find_condition
from sandpool.api.kinds import EVENT, SANDBOX_CLAIM
from sandpool.api.resource import SharedObject
from sandpool.kube import kubeconfig
from sandpool.service.service import Service
from sandpool.testing.waiting import until
from tests.support.playground import WITHIN, Playground

pytestmark = pytest.mark.isolation
_HOG = "hog = [bytearray(16 << 20) for _ in range(64)]"


@pytest_asyncio.fixture
async def claim(home: Playground) -> AsyncIterator[str]:
    """A claim with a sandbox of 96 MiB."""

    def make() -> str:
        home.works("template", "create", "hungry", "--image", "sandpool.local/python", "--memory", "96Mi")
        home.works("pool", "create", "hungry", "--size", "1", "--wait", "30s")
        return home.works("claim", "--pool", "hungry").strip()

    def remove(name: str) -> None:
        home.works("release", name)
        home.works("pool", "rm", "hungry")
        home.works("template", "rm", "hungry")

    name = await asyncio.to_thread(make)
    yield name
    await asyncio.to_thread(remove, name)


async def test_sandbox_that_ran_out_of_memory_is_told_by_claim_events_why_and_router(
    home: Playground, claim: str
) -> None:
    async with Service.connect(kubeconfig.load(home.kubeconfig)) as service, aiohttp.ClientSession() as session:
        sandbox = (await service.sandboxes.find(claim)).name
        namespace = service.namespace

        async def ask() -> tuple[int, str]:
            async with session.get(home.router, headers={"X-Sandbox-ID": sandbox}) as answer:
                return answer.status, await answer.text()

        assert (await ask())[0] == 200
        killed = await asyncio.to_thread(home.run, "exec", claim, "--", "python3", "-c", _HOG)
        assert killed.returncode == 137

        async def condition() -> SharedObject | None:
            found = await service.client.get(SANDBOX_CLAIM, claim, namespace)
            return find_condition(found["status"]["conditions"], STATE_LOST)

        lost = await until(condition, within=WITHIN)
        assert lost is not None
        assert (lost["status"], lost["reason"]) == ("True", "OOMKilled")
        assert "ran out of memory" in lost["message"]
        assert lost["lastTransitionTime"].startswith("2")

        async def refused() -> str | None:
            status, text = await ask()
            return text if status == 410 else None

        # The router sees the loss a moment later than this test.
        assert "ran out of memory" in (await until(refused, within=WITHIN) or "")
        await service.sandboxes.wait(sandbox, suspended=False, timeout=WITHIN)
        assert (await ask())[0] == 200, "told once"

        async def told() -> set[str]:
            events = (await service.client.list(EVENT, namespace))["items"]
            about = {
                json.dumps(each["regarding"]["name"]).strip('"') for each in events if each["reason"] == "StateLost"
            }
            return about if {claim, sandbox} <= about else set()

        await until(told, within=WITHIN)
    said = await asyncio.to_thread(home.works, "why", claim)
    assert "lost its state" in said
    assert "ran out of memory" in said
    assert lost["lastTransitionTime"] in said
