"""The limits of a namespace: how many of its claims have a sandbox, and how many warm sandboxes its pools keep.

An annotation of the Namespace sets a limit, and the flags of the controllers set it for namespaces without the
annotation. Users with rights in a namespace alone can change neither. Without permission to read Namespaces, or where
an annotation is no number, the flags apply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from sandpool.api import labels
from sandpool.api.resource import Key
from sandpool.api.views import NamespaceView, WarmPoolView
from sandpool.controllers.informers import Caches
from sandpool.engine.cache.store import reads

_log = logging.getLogger(__name__)

#: The value of an annotation that sets no limit.
UNLIMITED: Final = "unlimited"


class NamespaceLimits:
    """``claims`` and ``warm_sandboxes`` apply to namespaces without an annotation. None: no limit."""

    def __init__(self, caches: Caches, *, claims: int | None = None, warm_sandboxes: int | None = None) -> None:
        self.caches = caches
        self._claims = claims
        self._warm_sandboxes = warm_sandboxes

    def claims(self, namespace: str) -> int | None:
        """How many claims of a namespace may have a sandbox at a time."""
        return self._limit(namespace, labels.MAX_CLAIMS, self._claims)

    def warm_sandboxes(self, namespace: str) -> int | None:
        """How many warm sandboxes all pools of a namespace may keep together."""
        return self._limit(namespace, labels.MAX_WARM_SANDBOXES, self._warm_sandboxes)

    def pool_size(self, pool: WarmPoolView) -> int:
        """How many warm sandboxes a pool keeps. The oldest pools of a namespace get theirs first."""
        limit = self.warm_sandboxes(pool.namespace)
        if limit is None:
            return pool.replicas
        others = self.caches.namespace_pools(pool.namespace)
        older = sum(each.replicas for each in others if not each.deleting and _age(each) < _age(pool))
        return max(0, min(pool.replicas, limit - older))

    def subscribe(self, changed: Callable[[str], None]) -> None:
        """Call ``changed`` with the name of a namespace whose annotations have changed its limits."""

        def handle(key: Key, old: NamespaceView | None, new: NamespaceView | None) -> None:
            changed(key.name)

        self.caches.namespaces.subscribe(handle, on_change_of=_limits_of)

    def _limit(self, namespace: str, annotation: str, default: int | None) -> int | None:
        view = self.caches.namespaces.get(Key("", namespace))
        text = None if view is None else view.annotations.get(annotation)
        return default if text is None else _parsed(annotation, text, default)


@reads("annotations")
def _limits_of(namespace: NamespaceView) -> tuple[str | None, str | None]:
    return namespace.annotations.get(labels.MAX_CLAIMS), namespace.annotations.get(labels.MAX_WARM_SANDBOXES)


@lru_cache(1024)
def _parsed(annotation: str, text: str, default: int | None) -> int | None:
    if text == UNLIMITED:
        return None
    if text.isascii() and text.isdecimal():
        return int(text[:18])
    _log.warning(
        'annotation %s of a Namespace has no effect: %r is neither a whole number nor "%s"', annotation, text, UNLIMITED
    )
    return default


def _age(pool: WarmPoolView) -> tuple[float, str]:
    created = pool.creation_timestamp
    return 0.0 if created is None else created.timestamp(), pool.name
