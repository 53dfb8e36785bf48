"""Keeps a controller from reconciling a key again because of its own writes.

A reconcile writes objects that reconciles read, so every write would enqueue its key once more, for nothing. The echo
arrives with the answer, which goes into the cache at once, or with the watch event, whichever is faster. Its content
does not tell it from a foreign change: the same answer may include the change of another client, whose event then
changes nothing in the cache.

So the filter keeps whatever would enqueue a key during a reconcile of it until the end of that reconcile. Then it asks
whether any work is left, which costs no request, and enqueues the key only if so.

All four controllers use it. A Sandbox or a template sends every change through the filter, because its plan costs
little. A claim or a pool sends only changes that its reconcile may have made itself, and compares them with what it has
written; all other changes enqueue it directly.
"""

from __future__ import annotations

from collections.abc import Callable

from sandpool.api.resource import Key
from sandpool.engine.controller import Reconcile, Result


class OwnWriteFilter:
    """Enqueues keys with ``enqueue``. ``has_work`` must cover every change that goes through the filter.

    ``middleware`` must be the innermost middleware of the controller.
    """

    def __init__(self, enqueue: Callable[[Key], object], has_work: Callable[[Key], bool]) -> None:
        self._enqueue = enqueue
        self.has_work = has_work
        # Keys that are being reconciled, and whether a change arrived since the reconcile began.
        self._running: dict[Key, bool] = {}

    def enqueue(self, key: Key) -> None:
        """Enqueue a key because an object it depends on has changed."""
        if key in self._running:
            self._running[key] = True
        else:
            self._enqueue(key)

    def middleware(self, controller: str, reconcile: Reconcile[Key]) -> Reconcile[Key]:
        """Keep changes during a reconcile until its end. A failed reconcile may have missed anything, so after a
        failure every change counts."""

        async def filtered_reconcile(key: Key) -> Result:
            self._running[key] = False
            try:
                result = await reconcile(key)
            except BaseException:
                if self._running.pop(key):
                    self._enqueue(key)
                raise
            if self._running.pop(key) and self.has_work(key):
                self._enqueue(key)
            return result

        return filtered_reconcile
