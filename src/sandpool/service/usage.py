"""CPU and memory of sandboxes, from the kubelets: ``nodes/NODE/proxy/stats/summary``.

Every kubelet has the summary, also without a metrics server. Reading it needs permission to get ``nodes/proxy``. CPU is
a counter there, so a rate needs two samples.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from sandpool.api.kinds import NODE
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError
from sandpool.kube.transport import Request

#: Namespace and name of a pod.
PodKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PodUsage:
    """``cpu_seconds`` is the CPU time since the containers started, ``memory`` the working set in bytes."""

    cpu_seconds: float
    memory: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Sample:
    """The usage of all pods that could be read, and why the others could not."""

    pods: Mapping[PodKey, PodUsage]
    problems: tuple[str, ...]

    def cores(self, key: PodKey, before: Sample) -> float | None:
        """The CPUs that a pod used on average since another sample; None if it is in only one of them."""
        now, then = self.pods.get(key), before.pods.get(key)
        if now is None or then is None:
            return None
        seconds = (now.at - then.at).total_seconds()
        # A restarted container counts from zero.
        return (
            (now.cpu_seconds - then.cpu_seconds) / seconds
            if seconds > 0 and now.cpu_seconds >= then.cpu_seconds
            else None
        )


class Usage:
    """Reads the usage of pods from the kubelets of nodes."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def sample(self, nodes: set[str]) -> Sample:
        """Read the pods of these nodes."""
        answers = await asyncio.gather(*(self._summary(node) for node in sorted(nodes)), return_exceptions=True)
        pods: dict[PodKey, PodUsage] = {}
        problems = []
        for answer in answers:
            if isinstance(answer, ApiError | OSError):
                problems.append(str(answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                pods.update(_pods(answer))
        return Sample(pods, tuple(dict.fromkeys(problems)))

    async def _summary(self, node: str) -> Mapping[str, Any]:
        answer = await self.client.transport.request(Request("GET", NODE.path(None, node, "proxy/stats/summary")))
        # A proxied answer may be declared as text.
        summary: Mapping[str, Any] = orjson.loads(answer) if isinstance(answer, str) else answer
        return summary


def _pods(summary: Mapping[str, Any]) -> dict[PodKey, PodUsage]:
    found = {}
    for pod in summary.get("pods") or ():
        containers = pod.get("containers") or ()
        times = [container["cpu"]["time"] for container in containers if container.get("cpu", {}).get("time")]
        if not times:
            continue
        nanoseconds = sum(container["cpu"].get("usageCoreNanoSeconds", 0) for container in containers)
        memory = sum(container.get("memory", {}).get("workingSetBytes", 0) for container in containers)
        at = datetime.fromisoformat(max(times))
        found[(pod["podRef"]["namespace"], pod["podRef"]["name"])] = PodUsage(nanoseconds / 1e9, memory, at)
    return found
