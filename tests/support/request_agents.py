"""A transport that remembers on whose behalf requests are sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from sandpool.kube.transport import Request, Transport, WatchEvent
from sandpool.kube.user_agent import current, of_program


class AgentsOfRequests:
    """Remembers the User-Agent with which ``program`` would send a request."""

    def __init__(self, transport: Transport, program: str) -> None:
        self.transport = transport
        self.program = of_program(program)
        self.seen: list[tuple[str, str]] = []

    async def request(self, request: Request) -> Any:
        self._remember(request.method, request)
        return await self.transport.request(request)

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        self._remember("WATCH", request)
        return self.transport.stream(request)

    async def close(self) -> None: ...

    def clients(self, what: str) -> set[str]:
        """The clients on whose behalf such requests were sent, such as ``POST sandboxclaims``; "" for none."""
        return {agent.removeprefix(self.program).strip() for each, agent in self.seen if each == what}

    def _remember(self, verb: str, request: Request) -> None:
        resource = request.path.rpartition("/namespaces/")[2].split("/")[1:2]
        self.seen.append((" ".join([verb, *resource]), current(self.program)))
