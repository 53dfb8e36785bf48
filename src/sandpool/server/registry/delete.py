"""The delete verbs: immediate, after a grace period, or after the last finalizer is removed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from sandpool.api.resource import Key, Object
from sandpool.engine.clock import timestamp
from sandpool.kube.errors import ApiError, conflict
from sandpool.kube.sharing import same
from sandpool.server.kinds.metadata import FOREGROUND, ORPHAN
from sandpool.server.registry.context import Outcome, RegistryContext
from sandpool.server.registry.read import Page, select
from sandpool.server.request.options import DeleteOptions, ListOptions
from sandpool.server.resources import Resource
from sandpool.server.store.store import Write

# A write that the store has accepted; awaiting it waits until it is durable.
_Waiting = Coroutine[Any, Any, Outcome]

_GC_FINALIZERS = {"Orphan": ORPHAN, "Foreground": FOREGROUND, "Background": None}
# Kinds that are always marked before they are removed, even without a grace period: watches see both events.
_GRACEFUL = frozenset({"pods"})
# Objects that a deletecollection deletes before it yields to the event loop.
_BEFORE_YIELD = 100
# Kinds that respond to a DELETE with the object; the others respond with a Status.
_RETURNS_OBJECT = frozenset(
    {"pods", "services", "serviceaccounts", "persistentvolumeclaims", "persistentvolumes"},
)


async def delete(
    context: RegistryContext, resource: Resource, namespace: str, name: str, options: DeleteOptions
) -> Outcome:
    return await _accepted(context, resource, namespace, name, options)


def _accepted(
    context: RegistryContext, resource: Resource, namespace: str, name: str, options: DeleteOptions
) -> _Waiting:
    """Pass the deletion to the store. Awaiting the result waits until it is durable."""
    old = context.current(resource, namespace, name)
    _check_preconditions(resource, old, options)
    resource.strategy.check_delete(old)
    marked = _marked(context, resource, old, options)
    if not _is_held(resource, marked):
        graceful = resource.storage in _GRACEFUL
        last = marked if graceful else old
        if options.dry_run:
            return _immediate(Outcome(_answer(resource, last)))
        if graceful and not same(marked, old):
            write = context.accept(resource, marked)
            write.durable.cancel()  # it is committed with the removal, which is awaited
            last = write.object
        return _removed(context, resource, context.accept_removal(resource, last), last)
    if options.dry_run:
        return _immediate(Outcome(marked))
    if same(marked, old):
        return _settled(context, resource, Key(namespace, name), marked)
    return context.durable(resource, context.accept(resource, marked))


async def _removed(context: RegistryContext, resource: Resource, write: Write, last: Object) -> Outcome:
    removed = await context.durable(resource, write)
    return Outcome(_answer(resource, removed.object or last))


async def _settled(context: RegistryContext, resource: Resource, key: Key, shown: Object | None) -> Outcome:
    """Write nothing, but wait until the writes of others to the object are durable."""
    await context.settle(resource, key)
    return Outcome(shown)


async def _immediate(outcome: Outcome) -> Outcome:
    return outcome


def _is_held(resource: Resource, marked: Object) -> bool:
    metadata = marked["metadata"]
    held = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
    return bool(held or resource.strategy.blocks_removal(marked))


def _check_preconditions(resource: Resource, old: Object, options: DeleteOptions) -> None:
    metadata = old["metadata"]
    subject = replace(resource.type, plural=resource.type.kind)  # kube-apiserver names the kind here
    if options.uid and options.uid != metadata["uid"]:
        why = f"the UID in the precondition ({options.uid}) does not match the UID in record ({metadata['uid']}). "
        raise conflict(subject, metadata["name"], why + "The object might have been deleted and then recreated")
    if options.resource_version and options.resource_version != metadata["resourceVersion"]:
        why = (
            f"the ResourceVersion in the precondition ({options.resource_version}) does not match the ResourceVersion "
            f"in record ({metadata['resourceVersion']}). The object might have been modified"
        )
        raise conflict(subject, metadata["name"], why)


def _marked(context: RegistryContext, resource: Resource, old: Object, options: DeleteOptions) -> Object:
    """The object marked for deletion."""
    metadata = old["metadata"]
    grace = max(resource.strategy.grace_period(old, options.grace_period), 0)
    finalizers = _finalizers(metadata, options)
    already = metadata.get("deletionTimestamp")
    if already:
        # A later request may shorten the grace period, never extend it.
        grace = min(grace, metadata.get("deletionGracePeriodSeconds") or 0)
    marked = {**metadata, "finalizers": finalizers}
    if not finalizers:
        del marked["finalizers"]
    if not already:
        marked["deletionTimestamp"] = _end(context.clock.now(), grace)
        marked["deletionGracePeriodSeconds"] = grace
        if "generation" in metadata:
            marked["generation"] = metadata["generation"] + 1
    elif grace < (metadata.get("deletionGracePeriodSeconds") or 0):
        marked["deletionTimestamp"] = _end(context.clock.now(), grace)
        marked["deletionGracePeriodSeconds"] = grace
    marked = {**old, "metadata": marked}
    return marked if already else resource.strategy.prepare_delete(marked)


def _end(now: datetime, grace: int) -> str:
    """The end of a grace period, capped at the latest timestamp."""
    try:
        return timestamp(now + timedelta(seconds=grace))
    except OverflowError:
        return timestamp(datetime.max.replace(tzinfo=now.tzinfo))


def _finalizers(metadata: Object, options: DeleteOptions) -> list[str]:
    """The finalizers, with the garbage collector's set according to the propagation policy."""
    finalizers: list[str] = metadata.get("finalizers") or []
    if not options.propagation:
        return finalizers
    wanted = _GC_FINALIZERS[options.propagation]
    kept = [each for each in finalizers if each not in (ORPHAN, FOREGROUND) or each == wanted]
    return [*kept, wanted] if wanted and wanted not in kept else kept


def _answer(resource: Resource, obj: Object) -> Object:
    if resource.storage in _RETURNS_OBJECT:
        return obj
    details = {
        "name": obj["metadata"]["name"],
        "group": resource.type.group,
        "kind": resource.type.plural,
        "uid": obj["metadata"]["uid"],
    }
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {key: value for key, value in details.items() if value},
    }


async def delete_collection(
    context: RegistryContext, resource: Resource, namespace: str | None, selection: ListOptions, options: DeleteOptions
) -> Page:
    """Delete all selected objects; returns the list of them before deletion."""
    entries = list(select(context, resource, namespace, selection))
    revision = context.store.revision
    await _delete_all(context, resource, [entry.key for entry in entries], options)
    return Page(entries, revision)


async def _delete_all(
    context: RegistryContext, resource: Resource, keys: Sequence[Key], options: DeleteOptions
) -> None:
    """Pass all deletions to the store before awaiting the first, so that they share transactions. Raises the first
    failure after all accepted deletions are done."""
    waiting: list[_Waiting] = []
    failure: ApiError | None = None
    try:
        try:
            for number, key in enumerate(keys, 1):
                if context.store.head(resource.storage, key) is None:
                    waiting.append(_settled(context, resource, key, None))  # already deleted by another client
                else:
                    waiting.append(_accepted(context, resource, *key, options))
                if number % _BEFORE_YIELD == 0:
                    await asyncio.sleep(0)
        except ApiError as error:
            failure = error
        for deletion in waiting:
            try:
                await deletion
            except ApiError as error:
                failure = failure or error
    finally:
        for deletion in waiting:
            deletion.close()  # those that were not awaited, on cancellation
    if failure is not None:
        raise failure
