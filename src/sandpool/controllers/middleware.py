"""Middleware for reconciles: a tracing span in the trace of the object, and a line in a log of reconciles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandpool.api.kinds import SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE
from sandpool.api.labels import CREATED_BY, TRACE_CONTEXT, normal_creator
from sandpool.api.resource import Key, ResourceType
from sandpool.api.views.metadata import View
from sandpool.controllers.informers import Caches
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock
from sandpool.engine.controller import Middleware, Reconcile, Result
from sandpool.engine.jsonl import JsonlWriter, ReconcileRecord
from sandpool.engine.tracing import Tracing


def trace_reconciles(tracing: Tracing, caches: Caches) -> Middleware[Key]:
    """Trace each reconcile in a span. An annotation of the object names the trace that the span belongs to.

    Reconciles of pools and of annotations are not traced: no client waits for them.
    """
    traced: Mapping[str, tuple[ResourceType, Cache[Any]]] = {
        "sandbox": (SANDBOX, caches.sandboxes),
        "sandboxclaim": (SANDBOX_CLAIM, caches.claims),
        "sandboxtemplate": (SANDBOX_TEMPLATE, caches.templates),
    }

    def wrap(controller: str, reconcile: Reconcile[Key]) -> Reconcile[Key]:
        if controller not in traced:
            return reconcile
        kind, cache = traced[controller]
        span = f"Reconcile{kind.kind}"

        async def traced_reconcile(key: Key) -> Result:
            view = cache.get(key)
            parent = view.annotations.get(TRACE_CONTEXT, "") if view is not None else ""
            with tracing.span(span, parent, span_attributes(kind, key, view)):
                return await reconcile(key)

        return traced_reconcile

    return wrap


def span_attributes(kind: ResourceType, key: Key, view: View | None) -> dict[str, str]:
    """The attributes of a reconcile's span, with the keys of the Go controllers, such as ``sandbox.name``.

    Spans of Sandboxes and claims also have the creator label, as pods and metrics do.
    """
    prefix = kind.kind.lower()
    attributes = {f"{prefix}.name": key.name, f"{prefix}.namespace": key.namespace}
    creator = None if view is None or kind not in (SANDBOX, SANDBOX_CLAIM) else view.labels.get(CREATED_BY)
    if creator or (creator is not None and kind is SANDBOX):  # on a claim, an empty label counts as none
        attributes[CREATED_BY] = normal_creator(creator)
    return attributes


def log_reconciles(log: JsonlWriter, clock: Clock) -> Middleware[Key]:
    """Log each reconcile and its result. A cancelled reconcile is not logged, since it has no result."""

    def wrap(controller: str, reconcile: Reconcile[Key]) -> Reconcile[Key]:
        async def logged_reconcile(key: Key) -> Result:
            begin = clock.monotonic()
            try:
                result = await reconcile(key)
            except Exception as error:
                problem = str(error) or type(error).__name__
                log.note(ReconcileRecord(controller, *key, clock.now(), clock.monotonic() - begin, None, problem))
                raise
            seconds = clock.monotonic() - begin
            log.note(ReconcileRecord(controller, *key, clock.now(), seconds, result.requeue_after, ""))
            return result

        return logged_reconcile

    return wrap
