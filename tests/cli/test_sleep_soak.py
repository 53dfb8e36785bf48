"""Random traffic for sandboxes that sleep all the time: no request is lost, and no busy sandbox sleeps."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from random import Random

import aiohttp
import pytest
import pytest_asyncio

from sandpool.engine.clock import SystemClock
from sandpool.kube import kubeconfig
from sandpool.service.commands import Command
from sandpool.service.service import Service
from tests.support.playground import Playground

pytestmark = [pytest.mark.isolation, pytest.mark.asyncio(loop_scope="module")]

SEED = int(os.environ.get("SANDPOOL_SEED", "1"))
MINUTES = float(os.environ.get("SANDPOOL_SOAK_MINUTES", "10"))
SANDBOXES = 3  # of each kind
# A job writes its file after this many seconds, which are more than those until its sandbox would be suspended.
JOB_SECONDS = 5
LONGEST_PAUSE = 6.0  # seconds between two requests: short ones find it awake, long ones frozen or suspended
EXECUTE = {"command": "sh -c 'echo $TOKEN'"}


class User:
    """Uses one sandbox in random ways. ``token`` is the variable that was handed to it, if it is late-bound."""

    def __init__(self, service: Service, router: str, claim: str, token: str, rng: Random) -> None:
        self.service = service
        self.router = router
        self.claim = claim
        self.token = token
        self.rng = rng
        self.clock = SystemClock()
        self.used: Counter[str] = Counter()

    async def run(self, command: str) -> str:
        sandbox = await self.service.sandboxes.find(self.claim)
        done = await self.service.commands.run(sandbox, Command(command))
        assert done.exit_code == 0, done
        return done.stdout.decode().strip()

    async def command(self) -> None:
        assert await self.run("echo $TOKEN") == self.token

    async def request(self) -> None:
        sandbox = await self.service.sandboxes.find(self.claim)
        await self.execute(self.router, {"X-Sandbox-ID": sandbox.name})

    async def forward(self) -> None:
        sandbox = await self.service.sandboxes.find(self.claim)
        async with self.service.ports.forward(sandbox, 8888) as port:
            for _ in range(self.rng.randint(1, 2)):  # the session outlives pods
                await self.execute(f"http://127.0.0.1:{port}", {})
                await self.pause()

    async def job(self) -> None:
        """Leave a job behind. Its sandbox must be the same, and awake, when it has ended."""
        await self.run(f"rm -f ~/done; (sleep {JOB_SECONDS}; touch ~/done) >/dev/null 2>&1 &")
        before = (await self.service.sandboxes.find(self.claim)).object
        await self.clock.sleep(JOB_SECONDS * 0.9)
        after = (await self.service.sandboxes.find(self.claim)).object
        assert after["metadata"]["generation"] == before["metadata"]["generation"], "it was suspended"
        await self.run("while [ ! -e ~/done ]; do sleep 0.1; done")

    async def execute(self, server: str, headers: dict[str, str]) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{server}/execute", json=EXECUTE, headers=headers) as answer,
        ):
            assert answer.status == 200, await answer.text()
            assert (await answer.json())["stdout"].strip() == self.token

    async def pause(self) -> None:
        await self.clock.sleep(self.rng.choice((0.0, 0.1, self.rng.uniform(0.5, LONGEST_PAUSE))))

    async def go_on(self, seconds: float) -> None:
        ways = {each.__name__: each for each in (self.command, self.request, self.forward, self.job)}
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            (name,) = self.rng.choices(list(ways), weights=(4, 4, 2, 1))
            await ways[name]()
            self.used[name] += 1
            await self.pause()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def users(home: Playground) -> AsyncIterator[list[User]]:
    times = ("--freeze-after", "1s", "--suspend-after", "3s")
    kinds: dict[str, tuple[str, ...]] = {"soak": (), "soak-bound": ("--late-binding",)}
    async with Service.connect(kubeconfig.load(home.kubeconfig)) as service:
        made = list[User]()
        for name, options in kinds.items():
            template = ("template", "create", name, "--image", "sandpool.local/python", *times, *options)
            await asyncio.to_thread(home.works, *template)
            await asyncio.to_thread(home.works, "pool", "create", name, "--size", str(SANDBOXES))
            await service.pools.wait_ready(name, SANDBOXES, 60)
            for number in range(SANDBOXES):
                token = f"token-{number}" if options else ""
                claim = await service.claims.create(name, env={"TOKEN": token} if token else None)
                rng = Random(SEED * 100 + len(made))
                made.append(User(service, home.router, claim.name, token, rng))
        yield made
        for user in made:
            await service.claims.release(user.claim)
        for name in kinds:
            for kind in ("pool", "template"):
                await asyncio.to_thread(home.works, kind, "rm", name)


async def soak(users: list[User], seconds: float) -> None:
    async with asyncio.TaskGroup() as group:
        for user in users:
            group.create_task(user.go_on(seconds))
    for user in users:  # each change of the mode is a generation
        sandbox = await user.service.sandboxes.find(user.claim)
        assert sandbox.object["metadata"]["generation"] >= 3, f"{user.claim} was never suspended and resumed"


async def test_no_request_is_lost_and_no_job_is_suspended(users: list[User]) -> None:
    await soak(users, 60.0)


@pytest.mark.long
async def test_no_request_is_lost_and_no_job_is_suspended_for_long(users: list[User]) -> None:
    await soak(users, MINUTES * 60)
    assert all(set(user.used) == {"command", "request", "forward", "job"} for user in users)
