"""The history of every sandbox of a namespace, for guarantees about every instant.

A test that polls the API sees the final state. Only a watch shows that a pool had a surplus member for a moment, or
that a sandbox belonged to two claims.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import TracebackType

from sandpool.api.kinds import SANDBOX
from sandpool.api.resource import SharedObject
from sandpool.kube.client import Client
from sandpool.testing.waiting import until
from sandpool.testing.world import owner_of


class SandboxHistory:
    """Records for the length of an ``async with``. ``states`` are the sandboxes after each event, by name."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.states: list[dict[str, SharedObject]] = []

    async def __aenter__(self) -> SandboxHistory:
        listed = await self.client.list(SANDBOX, self.namespace)
        self.states.append({each["metadata"]["name"]: each for each in listed["items"]})
        self._task = asyncio.create_task(self._write(listed["metadata"]["resourceVersion"]))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _write(self, version: str) -> None:
        async for event in self.client.watch(SANDBOX, self.namespace, resource_version=version):
            if event.type == "BOOKMARK":
                continue
            state = dict(self.states[-1])
            name = event.object["metadata"]["name"]
            if event.type == "DELETED":
                del state[name]
            else:
                state[name] = event.object
            self.states.append(state)

    async def complete(self) -> None:
        """Wait until the history includes all current objects."""
        listed = (await self.client.list(SANDBOX, self.namespace))["items"]
        now = {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in listed}

        async def caught_up() -> bool:
            state = self.states[-1]
            return all(
                name in state and int(state[name]["metadata"]["resourceVersion"]) >= int(version)
                for name, version in now.items()
            )

        await until(caught_up)

    def most(self, counted: Callable[[SharedObject], bool]) -> int:
        """Return the largest number of sandboxes that met a predicate at one time."""
        return max(sum(map(counted, state.values())) for state in self.states)

    def least(self, counted: Callable[[SharedObject], bool]) -> int:
        return min(sum(map(counted, state.values())) for state in self.states)

    def claims(self) -> dict[str, set[str]]:
        """Return the UIDs of all claims that ever owned each sandbox, by UID of the sandbox."""
        found: dict[str, set[str]] = {}
        for box in self._all():
            for reference in box["metadata"].get("ownerReferences") or []:
                if reference["kind"] == "SandboxClaim":
                    found.setdefault(box["metadata"]["uid"], set()).add(reference["uid"])
        return found

    def _all(self) -> Iterator[SharedObject]:
        for state in self.states:
            yield from state.values()


def is_member(box: SharedObject) -> bool:
    """Whether a pool owns the sandbox, including a terminating one."""
    return owner_of(box)[0] == "SandboxWarmPool"
