"""Reflector: keeps a cache up to date by listing the objects of a type and then watching them.

The classic failure of operators is a watch that has died silently: the process runs, passes its health checks and does
nothing. So this module is about the ways in which a watch can fail:

* **It ends.** Servers end watches every few minutes. The reflector opens it again from the last version seen, which
  bookmarks keep fresh, and misses nothing.
* **It ends at once**, again and again. That counts as a failure with back-off; otherwise it would be a busy loop.
* **The connection is lost.** The reflector opens the watch again from the last version, with back-off.
* **It goes silent**: a half-open connection looks exactly like a quiet one. A server sends bookmarks about once a
  minute, so a watch or list without any event for ``silence`` seconds is dead and is replaced.
* **410 Gone**: the version is too old. The same request would fail for ever, so the reflector lists again. All watchers
  get this error at the same moment, hence a random delay before the list.
* **An event is malformed**, or the watch has failed several times in a row from one version without a single event:
  only a new list gets past it.
* **Our own code fails** on one object: that object keeps its last view, the others are not affected.

No failure ends the task, only cancellation does. Every failure is counted and reported. ``age`` is the heartbeat: the
seconds since the API last sent anything. It stays below two minutes on a healthy connection, however quiet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from random import Random
from typing import Any, Generic, TypeVar, cast

from sandpool.api.resource import ResourceType, SharedObject
from sandpool.engine.cache.store import Cache, Listing, stamp_of, version_of
from sandpool.engine.clock import Clock
from sandpool.engine.ratelimit import Backoff
from sandpool.kube.client import Client
from sandpool.kube.errors import ApiError, Expired, Gone
from sandpool.kube.transport import WatchEvent

_log = logging.getLogger(__name__)

V = TypeVar("V")

# Two bookmarks of kube-apiserver, which come up to 75 s apart.
SILENCE = 150.0
# A watch that ends sooner than this counts as failed. Seconds.
_AT_ONCE = 1.0
# Watches in a row without an event after which the reflector lists again.
_FRUITLESS = 3
# Maximum random delay in seconds before a list that many watchers may need at the same moment.
_SPREAD = 1.0
# Events taken in before other tasks get the event loop: a claim must not wait for the end of a burst.
_BATCH = 100


class Unreadable(Exception):
    """A watch sent something that is not an event about an object."""


class Reflector(Generic[V]):
    """Reflects the objects of a type that match the selectors, in one namespace or all.

    Start ``run`` as a task. ``synced`` is set once the first list is in the cache, ``attempted`` also if it has failed;
    ``problem`` then says why.
    """

    def __init__(
        self,
        client: Client,
        type: ResourceType,
        cache: Cache[V],
        clock: Clock,
        rng: Random,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        page_size: int = 500,
        silence: float = SILENCE,
    ) -> None:
        self.client = client
        self.type = type
        self.cache = cache
        self.clock = clock
        self.rng = rng
        self.namespace = namespace
        self.label_selector = label_selector
        self.field_selector = field_selector
        self.page_size = page_size
        self.silence = silence
        self.synced = asyncio.Event()
        self.attempted = asyncio.Event()
        self.problem = ""  # why there is no first list yet
        self.lists = 0  # begun
        self.watches = 0  # begun
        self.unreadable = 0  # objects our own code failed on
        self._failure_log = FailureLog(f"reflecting {type}", rng, _log)
        self._version: int | None = None  # the newest version seen; None: list before watching
        self._paged = True  # whether the next list may be paginated
        self._fruitless = 0  # watches in a row without an event
        self._last_message_at = clock.monotonic()  # when the API last sent anything

    @property
    def failures(self) -> int:
        """Number of failed lists and watches."""
        return self._failure_log.total

    def age(self) -> float:
        """Seconds since the API last sent anything: a page of a list, an event or a bookmark."""
        return self.clock.monotonic() - self._last_message_at

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                if self._version is None:
                    await self._supervised(self._list())
                else:
                    await self._supervised(self._watch(self._version))
            except Exception as error:  # noqa: BLE001 - the task must survive every failure
                await self._recover(error)

    async def _supervised(self, work: Coroutine[Any, Any, None]) -> None:
        """Await ``work``; when the API is silent for too long cancel it and raise ``TimeoutError``."""
        task = asyncio.create_task(work, name=f"reflect {self.type}")
        guard = asyncio.create_task(self._silence(), name=f"guard {self.type}")
        try:
            await asyncio.wait((task, guard), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise TimeoutError(f"the API sent nothing for {self.silence:g} s")
            if task.cancelled():
                raise ConnectionError("the transport cancelled the request")
            task.result()
        finally:
            task.cancel()
            guard.cancel()
            await asyncio.gather(task, guard, return_exceptions=True)

    async def _silence(self) -> None:
        """Return once the API has sent nothing for ``silence`` seconds, counted from now at the earliest."""
        begin = self.clock.monotonic()
        while (left := max(begin, self._last_message_at) + self.silence - self.clock.monotonic()) > 0:
            await self.clock.sleep(left)

    # -- listing ---------------------------------------------------------------------------------------------------

    async def _list(self) -> None:
        self.lists += 1
        page = await self._page(None)
        version = version_of(page)
        listing = self.cache.begin_list(version)
        self._take_page(listing, page)
        while token := page["metadata"].get("continue"):
            page = await self._page(token)
            self._take_page(listing, page)
        listing.finish()
        self._version = version
        self._paged = True
        self.problem = ""
        self.synced.set()
        self.attempted.set()

    async def _page(self, token: str | None) -> SharedObject:
        try:
            page = await self.client.list(
                self.type,
                self.namespace,
                label_selector=self.label_selector,
                field_selector=self.field_selector,
                limit=self.page_size if self._paged else None,
                continue_token=token,
            )
        except Gone:
            # The history of the server is shorter than the time between pages. One large list costs more but cannot
            # expire.
            self._paged = False
            raise
        self._last_message_at = self.clock.monotonic()
        return page

    def _take_page(self, listing: Listing[V], page: SharedObject) -> None:
        for object in page.get("items") or ():
            try:
                listing.add(object)
            except Exception:  # noqa: BLE001 - one bad object must not block the others
                self._could_not_read(object)

    # -- watching --------------------------------------------------------------------------------------------------

    async def _watch(self, version: int) -> None:
        self.watches += 1
        self._fruitless += 1
        begin = self.clock.monotonic()
        stream = self.client.watch(
            self.type,
            self.namespace,
            label_selector=self.label_selector,
            field_selector=self.field_selector,
            resource_version=str(version),
            timeout_seconds=int(300 + 300 * self.rng.random()),
        )
        taken = 0
        async with aclosing(cast(AsyncGenerator[WatchEvent, None], stream)) as events:
            async for event in events:
                self._last_message_at = self.clock.monotonic()
                self._take_event(event)
                self._fruitless = 0
                if self._failure_log.is_failing and self._last_message_at - begin >= _AT_ONCE:
                    self._failure_log.ended()
                taken += 1
                if taken % _BATCH == 0:
                    await self.clock.sleep(0)
        if self.clock.monotonic() - begin < _AT_ONCE:
            raise ConnectionError("the watch ended at once")
        self._failure_log.ended()

    def _take_event(self, event: WatchEvent) -> None:
        type, object = event.type, event.object
        try:
            stamp = None if type == "BOOKMARK" else stamp_of(object)
            version = version_of(object) if stamp is None else stamp[1]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Unreadable(f"the watch sent {type} of something that is not an object") from error
        if stamp is None:
            if self._version is not None and version < self._version:
                raise Expired(f"the server is at version {version}, older than {self._version}, which it sent before")
            self.cache.observe_bookmark(version)
        elif type in ("ADDED", "MODIFIED", "DELETED"):
            take = self.cache.observe_deletion if type == "DELETED" else self.cache.observe
            try:
                take(object, stamp)
            except Exception:  # noqa: BLE001 - see _take_page
                self._could_not_read(object)
        else:
            raise Unreadable(f"the watch sent an event of type {type!r}")
        if self._version is None or version > self._version:
            self._version = version

    def _could_not_read(self, object: SharedObject) -> None:
        self.unreadable += 1
        metadata = object.get("metadata") or {}
        _log.exception("could not read %s %s; it keeps its last view", self.type, metadata.get("name"))

    # -- recovering ------------------------------------------------------------------------------------------------

    async def _recover(self, error: Exception) -> None:
        if not self.synced.is_set():
            self.problem = str(error) or type(error).__name__
        self.attempted.set()
        if not _is_transient(error) or self._fruitless >= _FRUITLESS:
            self._version = None
            self._fruitless = 0
        if self._version is None:
            pause = self._failure_log.failed(error, "listing again") + _SPREAD * self.rng.random()
        else:
            pause = self._failure_log.failed(error, f"watching again from version {self._version}")
        await self.clock.sleep(pause)


def _is_transient(error: Exception) -> bool:
    """Whether a failure does not concern the version from which we watched."""
    if isinstance(error, ApiError):
        return error.code == 429 or error.code >= 500
    return isinstance(error, ConnectionError | TimeoutError)


# Expected failures. Anything else is a bug and is logged with a traceback.
_EXPECTED = (ApiError, ConnectionError, TimeoutError)
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 30.0


class FailureLog:
    """Failures in a row: counts each, logs each kind once, and returns growing pauses.

    A reflector that cannot reach its API for an hour fails thousands of times. The log has one line when that begins,
    one for each further kind of error, and one when it is over. ``subject`` identifies the failing operation.
    """

    def __init__(self, subject: str, rng: Random, log: logging.Logger) -> None:
        self.subject = subject
        self.total = 0  # failures ever
        self._log = log
        # Half of a pause is random, so that reflectors that lost their API together do not return together.
        self._backoff: Backoff[None] = Backoff(rng, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE, jitter=0.5)
        self._reported: set[type[Exception]] = set()  # kinds that were logged since the last success
        self.is_failing = False  # whether the last attempt failed

    def failed(self, error: Exception, then: str) -> float:
        """Count a failure, log it if its kind is new, and return the pause in seconds. ``then`` names the next step."""
        self.total += 1
        self.is_failing = True
        if type(error) not in self._reported:
            self._reported.add(type(error))
            expected = isinstance(error, _EXPECTED)
            self._log.log(
                logging.WARNING if expected else logging.ERROR,
                "%s failed: %s; %s",
                self.subject,
                str(error) or type(error).__name__,
                then,
                exc_info=None if expected else error,
            )
        pause = self._backoff.next_delay(None)
        retry_after = error.retry_after if isinstance(error, ApiError) else None
        return max(pause, retry_after or 0.0)

    def ended(self) -> None:
        """Note a success."""
        self.is_failing = False
        failures = self._backoff.failures(None)
        if failures:
            self._log.info("%s works again after %d failures", self.subject, failures)
            self._backoff.forget(None)
            self._reported.clear()
