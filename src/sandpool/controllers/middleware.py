"""Middleware around a reconcile: a tracing span in the trace of the object, or a line in a log of reconciles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sandpool.api.labels import TRACE_CONTEXT
from sandpool.engine.cache.store import Cache, Key
from sandpool.engine.clock import Clock
from sandpool.engine.controller import Result
from sandpool.engine.jsonl import JsonlWriter, ReconcileRecord
from sandpool.engine.tracing import Tracing

Reconcile = Callable[[Key], Awaitable[Result]]


def with_tracing(reconcile: Reconcile, span: str, cache: Cache[Any], tracing: Tracing) -> Reconcile:
    """Wrap each reconcile in a span. An annotation of the object, found in ``cache``, names the trace it belongs to."""

    async def traced_reconcile(key: Key) -> Result:
        view = cache.get(key)
        parent = view.annotations.get(TRACE_CONTEXT, "") if view is not None else ""
        with tracing.span(span, parent, {"namespace": key.namespace, "name": key.name}):
            return await reconcile(key)

    return traced_reconcile


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
