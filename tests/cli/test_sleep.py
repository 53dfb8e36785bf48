"""Sandboxes of a home fall asleep and are resumed by whatever uses them next."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import pytest
import pytest_asyncio

from sandpool.api.kinds import SANDBOX
from sandpool.api.labels import ASLEEP_SINCE
from sandpool.api.resource import SharedObject
from sandpool.kube import kubeconfig
from sandpool.service.commands import Command
from sandpool.service.service import Service
from sandpool.service.waking import is_asleep
from sandpool.testing.waiting import until
from tests.support.playground import Playground

pytestmark = [pytest.mark.isolation, pytest.mark.asyncio(loop_scope="module")]


@dataclass
class Rig:
    home: Playground
    service: Service
    router: str

    async def sandbox(self, name: str) -> SharedObject:
        found = await self.service.sandboxes.find(name)
        return found.object

    async def asleep(self, name: str) -> SharedObject:
        """Wait until the sandbox sleeps, and its pod is gone."""
        sandbox = (await self.service.sandboxes.find(name)).name
        found = await self.service.sandboxes.wait(sandbox, suspended=True, timeout=60)
        assert found.asleep
        return found.object

    async def token_by_command(self, name: str) -> str:
        done = await self.service.commands.run(await self.service.sandboxes.find(name), Command("echo $TOKEN"))
        return done.stdout.decode().strip()

    async def token_by_request(self, name: str) -> str:
        sandbox = (await self.service.sandboxes.find(name)).name
        return await _execute(self.router, {"X-Sandbox-ID": sandbox})

    async def token_by_forwarded_port(self, name: str) -> str:
        async with self.service.ports.forward(await self.service.sandboxes.find(name), 8888) as port:
            return await _execute(f"http://127.0.0.1:{port}", {})

    async def get(self, name: str) -> tuple[int, str]:
        sandbox = (await self.service.sandboxes.find(name)).name
        headers = {"X-Sandbox-ID": sandbox}
        async with aiohttp.ClientSession() as session, session.get(self.router, headers=headers) as answer:
            return answer.status, await answer.text()


async def _execute(server: str, headers: dict[str, str]) -> str:
    """Run a command through the server in a sandbox, as the published SDK does."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server}/execute", json={"command": "sh -c 'echo $TOKEN'"}, headers=headers) as answer,
    ):
        found: str = (await answer.json())["stdout"]
        return found.strip()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(home: Playground) -> AsyncIterator[Rig]:
    def run(*arguments: str) -> None:
        home.works(*arguments)

    pools: dict[str, tuple[str, ...]] = {"sleepy": (), "sleepy-bound": ("--late-binding",)}
    for name, options in pools.items():
        template = ("template", "create", name, "--image", "sandpool.local/python", "--suspend-after", "1s", *options)
        await asyncio.to_thread(run, *template)
        await asyncio.to_thread(run, "pool", "create", name, "--size", "1")
    async with Service.connect(kubeconfig.load(home.kubeconfig)) as service:
        for name in pools:
            await service.pools.wait_ready(name, 1, 60)
        yield Rig(home, service, home.router)
    for name in pools:
        await asyncio.to_thread(run, "pool", "rm", name)
        await asyncio.to_thread(run, "template", "rm", name)


@pytest_asyncio.fixture(loop_scope="module")
async def box(rig: Rig) -> AsyncIterator[str]:
    name = (await asyncio.to_thread(rig.home.works, "claim", "--pool", "sleepy")).strip()
    yield name
    await asyncio.to_thread(rig.home.works, "release", name)


@pytest_asyncio.fixture(loop_scope="module")
async def bound(rig: Rig) -> AsyncIterator[str]:
    """A warm sandbox that was given a variable."""
    claim = await rig.service.claims.create("sleepy-bound", env={"TOKEN": "yellow"})
    assert (await rig.service.sandboxes.find(claim.name)).launch == "warm"
    yield claim.name
    await rig.service.claims.release(claim.name)


async def test_unused_sandbox_falls_asleep_and_a_command_resumes_it(rig: Rig, box: str) -> None:
    sandbox = await rig.asleep(box)
    assert "Asleep" in await asyncio.to_thread(rig.home.works, "ls")
    why = await asyncio.to_thread(rig.home.works, "why", box)
    assert f"asleep since {sandbox['metadata']['annotations'][ASLEEP_SINCE]}" in why
    assert "because it was not used for 1s" in why
    assert await asyncio.to_thread(rig.home.works, "exec", box, "--", "echo", "awake") == "awake\n"
    resumed = await rig.sandbox(box)  # it may sleep again by now
    assert resumed["metadata"]["generation"] > sandbox["metadata"]["generation"]


async def test_frozen_sandbox_is_shown_until_it_is_used(home: Playground, rig: Rig) -> None:
    template = ("template", "create", "frosty", "--image", "sandpool.local/python", "--freeze-after", "1s")
    await asyncio.to_thread(home.works, *template)
    await asyncio.to_thread(home.works, "pool", "create", "frosty", "--size", "1", "--wait", "60s")
    claim = (await asyncio.to_thread(home.works, "claim", "--pool", "frosty")).strip()

    async def state() -> str:
        lines = (await asyncio.to_thread(home.works, "ls")).splitlines()
        return next(line.split()[1] for line in lines if line.startswith(claim))

    async def is_shown(wanted: str) -> bool:
        return await state() == wanted

    await until(lambda: is_shown("Frozen"), within=60.0)
    assert "because it was not used; the next request thaws it" in await asyncio.to_thread(home.works, "why", claim)
    async with (
        rig.service.ports.forward(await rig.service.sandboxes.find(claim), 8888) as port,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/") as answer,
    ):
        assert answer.status == 200
        await until(lambda: is_shown("Ready"), within=60.0)
    await asyncio.to_thread(home.works, "release", claim)
    for kind in ("pool", "template"):
        await asyncio.to_thread(home.works, kind, "rm", "frosty")


async def test_storm_of_requests_through_the_router_resumes_it_once(rig: Rig, box: str) -> None:
    before = await rig.asleep(box)
    answers = await asyncio.gather(*(rig.get(box) for _ in range(40)))
    assert {status for status, _ in answers} == {200}
    after = await rig.sandbox(box)
    # Each suspension and each resumption is one change of the spec.
    assert after["metadata"]["generation"] - before["metadata"]["generation"] in (1, 2)


async def test_forwarded_port_resumes_it_also_in_an_old_session(rig: Rig, box: str) -> None:
    await rig.asleep(box)
    sandbox = await rig.service.sandboxes.find(box)
    async with rig.service.ports.forward(sandbox, 8888) as port:
        for _ in range(2):
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/") as answer:
                assert answer.status == 200
            await rig.asleep(box)


async def test_kubectl_exec_resumes_it(rig: Rig, box: str) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl")
    sandbox = await rig.asleep(box)
    pod = sandbox["metadata"]["name"]
    command = [kubectl, "--kubeconfig", str(rig.home.kubeconfig), "exec", pod, "--", "echo", "hi"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "hi\n"), done.stderr


async def test_sandbox_that_its_user_has_suspended_is_not_resumed_by_a_request(rig: Rig, box: str) -> None:
    await rig.asleep(box)
    await asyncio.to_thread(rig.home.works, "suspend", box)
    assert (await rig.get(box))[0] == 409
    said = await asyncio.to_thread(rig.home.fails, "exec", box, "--", "true")
    assert f"Resume it with: sandpool resume {box}" in said
    assert "Suspended" in await asyncio.to_thread(rig.home.works, "ls")
    await asyncio.to_thread(rig.home.works, "resume", box)
    assert (await rig.get(box))[0] == 200


async def test_background_job_is_never_suspended(rig: Rig, box: str) -> None:
    sandbox = await rig.service.sandboxes.find(box)
    job = "touch /tmp/job; (while [ -e /tmp/job ]; do sleep 0.2; done) >/dev/null 2>&1 &"
    await rig.service.commands.run(sandbox, Command(job))
    # Another sandbox that is claimed later has its time, and more, meanwhile.
    other = (await asyncio.to_thread(rig.home.works, "claim", "--pool", "sleepy")).strip()
    try:
        for _ in range(2):
            await rig.asleep(other)
            await asyncio.to_thread(rig.home.works, "exec", other, "--", "true")
        assert not is_asleep(await rig.service.client.get(SANDBOX, sandbox.name, "default"))
    finally:
        await asyncio.to_thread(rig.home.works, "release", other)
    await rig.service.commands.run(sandbox, Command("rm /tmp/job"))
    await rig.asleep(box)


async def test_sandbox_with_late_bound_variables_has_them_again_when_it_is_woken(rig: Rig, bound: str) -> None:
    for wake in (rig.token_by_command, rig.token_by_request, rig.token_by_forwarded_port):
        await rig.asleep(bound)
        seen = await asyncio.gather(*(wake(bound) for _ in range(8)))
        assert set(seen) == {"yellow"}
