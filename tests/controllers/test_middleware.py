"""Which spans the controllers leave, and that those of one claim and its sandbox are one trace.

Passes that are noted in a log: when, over what, and how they ended.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from sandpool.api.resource import Key
from sandpool.controllers.middleware import log_reconciles, span_attributes
from sandpool.engine.controller import DONE, Result
from sandpool.engine.jsonl import JsonlWriter
from sandpool.testing.clock import ManualClock

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sandpool.api.conditions import is_ready
from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.labels import CREATED_BY, TRACE_CONTEXT
from sandpool.api.resource import ResourceType
from sandpool.api.views.metadata import View, metadata_of
from sandpool.controllers.manager import ControllerManager
from sandpool.engine.clock import SystemClock
from sandpool.engine.tracing_otel import OpenTelemetryTracing
from sandpool.node.simulated import SimulatedNode
from sandpool.server.api_server import ApiServer
from sandpool.testing.objects import new, pod_template
from sandpool.testing.waiting import until


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


async def test_claim_and_its_sandbox_share_one_trace(tmp_path: Path) -> None:
    server, clock, exporter = ApiServer(tmp_path), SystemClock(), InMemorySpanExporter()
    await server.start()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing = OpenTelemetryTracing(provider)
    controllers = ControllerManager(server.client(), clock, Random(1), tracing=tracing)
    node = asyncio.create_task(SimulatedNode(server.client(), clock).run())
    await controllers.start()
    client = server.client(name="users")
    template = new(SANDBOX_TEMPLATE, "python", spec={"podTemplate": pod_template()})
    await client.create(SANDBOX_TEMPLATE, template, "default")
    pool = new(SANDBOX_WARM_POOL, "pool", spec={"replicas": 0, "sandboxTemplateRef": {"name": "python"}})
    await client.create(SANDBOX_WARM_POOL, pool, "default")
    claim = new(SANDBOX_CLAIM, "mine", spec={"warmPoolRef": {"name": "pool"}})
    claim["metadata"]["labels"] = {CREATED_BY: "python-client"}
    await client.create(SANDBOX_CLAIM, claim, "default")

    async def served() -> bool:
        return is_ready(await client.get(SANDBOX_CLAIM, "mine", "default"))

    await until(served)
    await controllers.stop()
    node.cancel()
    await asyncio.gather(node, return_exceptions=True)
    [box] = (await client.list(SANDBOX, "default"))["items"]
    await server.stop()
    tracing.close()

    spans = exporter.get_finished_spans()
    assert {span.name for span in spans} == {
        "ReconcileSandboxTemplate",
        "ReconcileSandboxClaim",
        "ReconcileSandbox",
        "reconcilePVCs",
        "reconcilePod",
    }
    trace = json.loads(box["metadata"]["annotations"][TRACE_CONTEXT])["traceparent"].split("-")[1]
    assert trace in {trace_of(span) for span in spans if span.name == "ReconcileSandboxClaim"}
    assert {trace_of(span) for span in spans if span.name in ("ReconcileSandbox", "reconcilePod")} == {trace}
    events = [(event.name, dict(event.attributes or {})) for span in spans for event in span.events]
    assert ("NewPodStatusObserved", {"pod.Name": box["metadata"]["name"], "pod.Phase": "Pending"}) in events
    assert ("ExistingPodStatusObserved", {"pod.Name": box["metadata"]["name"], "pod.Phase": "Running"}) in events
    attributes = {span.name: dict(span.attributes or {}) for span in spans}
    assert attributes["ReconcileSandbox"] == {
        "sandbox.name": box["metadata"]["name"],
        "sandbox.namespace": "default",
        "agents.x-k8s.io/created-by": "python-client",
    }
    assert attributes["ReconcileSandboxClaim"] == {
        "sandboxclaim.name": "mine",
        "sandboxclaim.namespace": "default",
        "agents.x-k8s.io/created-by": "python-client",
    }
    assert attributes["reconcilePod"] == attributes["reconcilePVCs"] == {}


BOX = Key("ns", "box")


@pytest.mark.parametrize(
    ("kind", "labels", "creator"),
    [
        (SANDBOX, {}, None),
        (SANDBOX, {CREATED_BY: "go-client"}, "go-client"),
        (SANDBOX, {CREATED_BY: "another"}, "unknown"),
        (SANDBOX, {CREATED_BY: ""}, "unknown"),
        (SANDBOX_CLAIM, {CREATED_BY: "another"}, "unknown"),
        (SANDBOX_CLAIM, {CREATED_BY: ""}, None),
        (SANDBOX_TEMPLATE, {CREATED_BY: "go-client"}, None),
    ],
)
def test_spans_name_the_creator(kind: ResourceType, labels: dict[str, str], creator: str | None) -> None:
    view = View(**metadata_of(new(kind, "box", metadata={"namespace": "ns", "labels": labels})))
    assert span_attributes(kind, BOX, view).get(CREATED_BY) == creator
    assert CREATED_BY not in span_attributes(kind, BOX, None), "the object is not known any more"


async def note(path: Path, ends: Result | Exception) -> Any:
    clock, log = ManualClock(), JsonlWriter(path)

    async def reconcile(key: Key) -> Result:
        assert key == BOX
        if isinstance(ends, Exception):
            raise ends
        return ends

    try:
        await log_reconciles(log, clock)("sandbox", reconcile)(BOX)
    finally:
        log.close()


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        (DONE, {}),
        (Result(2.5), {"requeueAfter": 2.5}),
        (ValueError("broken"), {"problem": "broken"}),
        (TimeoutError(), {"problem": "TimeoutError"}),
    ],
)
async def test_log_states_how_a_reconcile_ended(tmp_path: Path, ends: Result | Exception, told: dict[str, Any]) -> None:
    path = tmp_path / "passes.log"
    if isinstance(ends, Exception):
        with pytest.raises(type(ends)):
            await note(path, ends)
    else:
        await note(path, ends)
    (line,) = path.read_bytes().splitlines()
    entry = orjson.loads(line)
    assert entry.pop("time").endswith("Z")
    assert entry == {"pass": "sandbox", "namespace": "ns", "name": "box", "ms": 0.0, **told}
