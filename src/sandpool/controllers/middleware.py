"""Middleware around a reconcile: a tracing span in the trace of the object, or a line in a log of reconciles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM
from sandpool.api.labels import CREATED_BY, TRACE_CONTEXT, normal_creator
from sandpool.api.resource import Key, ResourceType
from sandpool.api.views.metadata import View
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock
from sandpool.engine.controller import Result
from sandpool.engine.jsonl import JsonlWriter, ReconcileRecord
from sandpool.engine.tracing import Tracing

Reconcile = Callable[[Key], Awaitable[Result]]


def with_tracing(reconcile: Reconcile, kind: ResourceType, cache: Cache[Any], tracing: Tracing) -> Reconcile:
    """Wrap each reconcile in a span. An annotation of the object, found in ``cache``, names the trace it belongs to."""
    span = f"Reconcile{kind.kind}"

    async def traced_reconcile(key: Key) -> Result:
        view = cache.get(key)
        parent = view.annotations.get(TRACE_CONTEXT, "") if view is not None else ""
        with tracing.span(span, parent, span_attributes(kind, key, view)):
            return await reconcile(key)

    return traced_reconcile


def span_attributes(kind: ResourceType, key: Key, view: View | None) -> dict[str, str]:
    """The attributes of a reconcile's span, with the keys of the Go controllers, such as ``sandbox.name``.

    Objects that pass on who created them, Sandboxes and claims, also carry that, as on pods and in metrics.
    """
    prefix = kind.kind.lower()
    attributes = {f"{prefix}.name": key.name, f"{prefix}.namespace": key.namespace}
    creator = None if view is None or kind not in (SANDBOX, SANDBOX_CLAIM) else view.labels.get(CREATED_BY)
    if creator or (creator is not None and kind is SANDBOX):  # on a claim, an empty label counts as none
        attributes[CREATED_BY] = normal_creator(creator)
    return attributes


def with_reconcile_log(reconcile: Reconcile, controller: str, log: JsonlWriter, clock: Clock) -> Reconcile:
    """Log each reconcile and its result. A cancelled reconcile is not logged, since it has no result."""

    async def noted_reconcile(key: Key) -> Result:
        begin = clock.monotonic()
        try:
            result = await reconcile(key)
        except Exception as error:
            problem = str(error) or type(error).__name__
            log.note(ReconcileRecord(controller, *key, clock.now(), clock.monotonic() - begin, None, problem))
            raise
        log.note(ReconcileRecord(controller, *key, clock.now(), clock.monotonic() - begin, result.requeue_after, ""))
        return result

    return noted_reconcile
