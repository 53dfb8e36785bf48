from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sandpool.kube.client import Client
from sandpool.kube.errors import Forbidden
from sandpool.kube.transport import Request
from sandpool.service.usage import PodUsage, Sample, Usage


def summary(seconds: float, second: int, *, memory: int = 5) -> dict[str, object]:
    time = f"2026-11-01T12:00:{second:02}.5Z"
    cpu = {"time": time, "usageCoreNanoSeconds": int(seconds * 1e9)}
    container = {"name": "main", "cpu": cpu, "memory": {"time": time, "workingSetBytes": memory}}
    return {"pods": [{"podRef": {"name": "box", "namespace": "ns"}, "containers": [container, container]}]}


class Nodes:
    """A transport to kubelets: the summaries of nodes, or errors."""

    def __init__(self, **answers: object) -> None:
        self.answers = answers

    async def request(self, request: Request) -> object:
        answer = self.answers[request.path.split("/")[4]]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_usage_is_the_sum_of_containers_and_a_rate_between_samples() -> None:
    before = await Usage(Client(Nodes(one=summary(1.0, 10)))).sample({"one"})  # type: ignore[arg-type]
    now = await Usage(Client(Nodes(one=summary(2.0, 14)))).sample({"one"})  # type: ignore[arg-type]
    assert now.pods[("ns", "box")] == PodUsage(4.0, 10, datetime(2026, 11, 1, 12, 0, 14, 500_000, tzinfo=UTC))
    assert now.cores(("ns", "box"), before) == pytest.approx(0.5)
    assert before.cores(("ns", "box"), now) is None  # a restarted container counts from zero
    assert now.cores(("ns", "other"), before) is None


async def test_nodes_that_cannot_be_read_are_named_once() -> None:
    import json

    nodes = Nodes(one=Forbidden("no"), two=Forbidden("no"), three=json.dumps(summary(1.0, 1)))
    sample = await Usage(Client(nodes)).sample({"one", "two", "three"})  # type: ignore[arg-type]
    assert sample.problems == ("no",)
    assert list(sample.pods) == [("ns", "box")]
    assert Sample({}, ()).cores(("ns", "box"), sample) is None
