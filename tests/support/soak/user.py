"""A user who claims sandboxes one after the other, works in them, suspends them and deletes the claims.

A seed chooses the actions; their duration depends on the machine. Every guarantee is checked at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Any, Final, TypeVar

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import PERSISTENT_VOLUME_CLAIM, POD, SANDBOX, SANDBOX_CLAIM
from sandpool.api.resource import ResourceType, SharedObject
from sandpool.api.times import timestamp
from sandpool.engine.clock import SystemClock
from sandpool.kube.client import MergePatch
from sandpool.kube.errors import AlreadyExists, NotFound
from sandpool.testing.objects import new
from tests.support.soak.command_log import Broken, CommandLog, Fate
from tests.support.soak.sandbox_requests import RequestOutcome, execute
from tests.support.soak.sandpool_process import SandpoolProcess

T = TypeVar("T")

NAMESPACE: Final = "default"
#: Pools, and the directory for files in a sandbox of each. Files on a volume outlive the pod.
PLACES: Final = {"plain": "/workspace", "disk": "/workspace/work"}
_WITHIN: Final = 180.0
_LIFETIME: Final = 6.0


class SandboxUser:
    """``live`` continues until ``over`` is set and then deletes the last claim."""

    def __init__(
        self, process: SandpoolProcess, name: str, rng: Random, over: asyncio.Event, deeds: dict[str, int]
    ) -> None:
        self.process = process
        self.name = name
        self.rng = rng
        self.over = over
        self.deeds = deeds
        self._clock = SystemClock()
        self._number = 0

    async def live(self) -> None:
        while not self.over.is_set():
            self._number += 1
            claim = f"{self.name}-{self._number}"
            pool = self.rng.choice(tuple(PLACES))
            match self.rng.random():
                case chance if chance < 0.1:
                    await self._change_of_mind(claim, pool)
                case chance if chance < 0.2:
                    await self._expiry(claim, pool)
                case _:
                    await self._stay(claim, pool)

    # --- scenarios ---------------------------------------------------------------------------------------------------

    async def _stay(self, claim: str, pool: str) -> None:
        stay = Stay(self, claim, await self._claimed(claim, pool), pool)
        acts = (stay.command, stay.command, stay.execute, stay.write, stay.read, stay.check, stay.sleep)
        for _ in range(self.rng.randrange(3, 20)):
            if self.over.is_set():
                break
            act = self.rng.choice(acts)
            self.did(act.__name__)
            await act()
        await stay.check()
        await self._given_back(claim, stay.sandbox)
        answer = await self.process.router.run(stay.sandbox, "true")
        if answer.fate is Fate.DONE:
            raise Broken(f"{claim}: its sandbox is gone and still answers")
        if pool == "disk":
            await self.gone(PERSISTENT_VOLUME_CLAIM, f"work-{stay.sandbox}")

    async def _change_of_mind(self, claim: str, pool: str) -> None:
        self.did("change of mind")
        await self._create(claim, pool)
        await asyncio.sleep(self.rng.random())
        await self._delete(claim)
        await self.gone(SANDBOX_CLAIM, claim)

    async def _expiry(self, claim: str, pool: str) -> None:
        """Run commands until the claim expires; then claim and sandbox must be gone."""
        self.did("expiry")
        end = timestamp(self._clock.now() + timedelta(seconds=_LIFETIME))
        await self._create(claim, pool, lifecycle={"shutdownTime": end, "shutdownPolicy": "Delete"})
        sandbox = ""
        async with asyncio.timeout(_WITHIN):
            while (found := await self.find(SANDBOX_CLAIM, claim)) is not None:
                sandbox = _sandbox_of(found) or sandbox
                if sandbox:
                    await self.process.router.run(sandbox, "true")
                await asyncio.sleep(0.3)
        if sandbox:
            await self.gone(SANDBOX, sandbox)

    # --- steps -------------------------------------------------------------------------------------------------------

    async def _claimed(self, claim: str, pool: str) -> str:
        """Wait for the sandbox of a claim and return its name."""
        self.did("claim")
        await self._create(claim, pool)

        async def served() -> str:
            found = await self.find(SANDBOX_CLAIM, claim)
            if found is None:
                raise Broken(f"{claim} was acknowledged and is gone")
            return _sandbox_of(found) if is_ready(found) else ""

        return await self.until(served, f"{claim} is ready")

    async def _create(self, claim: str, pool: str, **spec: Any) -> None:
        body = new(SANDBOX_CLAIM, claim, spec={"warmPoolRef": {"name": pool}, **spec})
        with suppress(AlreadyExists):  # the answer to an earlier attempt may have been lost
            await self.process.steadily(lambda client: client.create(SANDBOX_CLAIM, body, NAMESPACE))

    async def _delete(self, claim: str) -> None:
        with suppress(NotFound):
            await self.process.steadily(lambda client: client.delete(SANDBOX_CLAIM, claim, NAMESPACE))

    async def _given_back(self, claim: str, sandbox: str) -> None:
        self.did("deletion")
        await self._delete(claim)
        await self.gone(SANDBOX_CLAIM, claim)
        await self.gone(SANDBOX, sandbox)

    async def gone(self, kind: ResourceType, name: str) -> None:
        async def is_gone() -> bool:
            return await self.find(kind, name) is None

        await self.until(is_gone, f"{kind.singular} {name} is gone")

    async def find(self, kind: ResourceType, name: str) -> SharedObject | None:
        try:
            return await self.process.steadily(lambda client: client.get(kind, name, NAMESPACE))
        except NotFound:
            return None

    async def until(self, probe: Callable[[], Awaitable[T]], what: str) -> T:
        try:
            async with asyncio.timeout(_WITHIN):
                while not (answer := await probe()):  # noqa: ASYNC110 - asked of an API that comes and goes
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise Broken(f"never in {_WITHIN:g} s: {what}") from None
        return answer

    def did(self, deed: str) -> None:
        self.deeds[deed] = self.deeds.get(deed, 0) + 1


class Stay:
    """One sandbox, from its assignment to the deletion of its claim."""

    def __init__(self, person: SandboxUser, claim: str, sandbox: str, pool: str) -> None:
        self.person = person
        self.claim = claim
        self.sandbox = sandbox
        self.place = PLACES[pool]
        self.outlives_pods = pool == "disk"
        self.command_log = CommandLog(f"{claim} in {sandbox}")
        self._words = 0

    async def command(self) -> None:
        word, script = self._next()
        answer = await self.person.process.router.run(self.sandbox, script)
        self._asked(word, answer.fate)

    async def execute(self) -> None:
        word, script = self._next()
        fate = await execute(self.person.process.connection, self.sandbox, "sh", "-c", script)
        self._asked(word, fate)

    async def write(self) -> None:
        name = f"file-{self.person.rng.randrange(5)}"
        content = self.person.rng.randbytes(self.person.rng.choice((0, 10, 100_000)))
        answer = await self.person.process.router.write(
            self.sandbox, f"{self.place}/{name}".removeprefix("/workspace/"), content
        )
        self.command_log.wrote(name, content, answer.fate)

    async def read(self) -> None:
        for name in self.command_log.files[:1]:
            self.command_log.check_file(name, await self._content(name))

    async def check(self) -> None:
        """Compare the sandbox with the log."""
        journal = await self._content("journal")
        self.command_log.check_commands((journal or b"").decode().split())
        for name in self.command_log.files:
            self.command_log.check_file(name, await self._content(name))

    async def sleep(self) -> None:
        """Suspend and resume. Meanwhile every request must be rejected at once."""
        await self.check()
        await self._mode("Suspended")
        await self.person.gone(POD, self.sandbox)
        if not self.outlives_pods:
            self.command_log.lost_all()
        word, script = self._next()
        answer = await self.person.process.router.run(self.sandbox, script)
        if answer.fate is Fate.DONE:
            raise Broken(f"{self.claim}: a sandbox that sleeps has answered")
        self._asked(word, answer.fate)
        await self._mode("Running")

        async def awake() -> bool:
            found = await self.person.find(SANDBOX, self.sandbox)
            return found is not None and is_ready(found)

        await self.person.until(awake, f"{self.sandbox} is awake")

    def _asked(self, word: str, fate: Fate) -> None:
        self.command_log.commanded(word, fate)
        self.person.did(f"commands {fate.value}")

    def _next(self) -> tuple[str, str]:
        """Return a unique word, and the command that appends it to the journal."""
        self._words += 1
        word = f"{self.claim}.{self._words}"
        return word, f"echo {word} >> {self.place}/journal"

    async def _mode(self, mode: str) -> None:
        patch = MergePatch({"spec": {"operatingMode": mode}})
        await self.person.process.steadily(lambda client: client.patch(SANDBOX, self.sandbox, patch, NAMESPACE))

    async def _content(self, name: str) -> bytes | None:
        """Return the content of a file; None if it does not exist."""
        path = f"{self.place}/{name}".removeprefix("/workspace/")

        async def answered() -> RequestOutcome | None:
            answer = await self.person.process.router.read(self.sandbox, path)
            return answer if answer.status == 200 or b"File not found" in answer.body else None

        answer = await self.person.until(answered, f"{self.sandbox} answers")
        return answer.body if answer is not None and answer.status == 200 else None


def _sandbox_of(claim: SharedObject) -> str:
    return str(((claim.get("status") or {}).get("sandbox") or {}).get("name") or "")
