"""Events of the API events.k8s.io/v1, recorded without making a reconcile wait.

``EventRecorder.event`` only queues an event and returns; the recorder's own writers do the rest. Its promises:

* **A reconcile never waits for an event and never fails because of one.** An event that cannot be queued or written is
  counted in ``dropped`` and forgotten.
* **The same event about the same object is one Event object** with a count and the time of the last occurrence. It is
  written at its first occurrence and then at most every ``spacing`` seconds, with all occurrences since. After
  ``window`` seconds without an occurrence a new Event object begins.
* **The API is not flooded.** After a burst the recorder writes at most ``rate`` events per second, and it retries a
  failed write a few times with back-off.

The recorder remembers at most ``capacity`` Events, written and unwritten together. When it is full it forgets the one
with the oldest last occurrence. If even that one is unwritten, events come faster than they can be written and the new
one is dropped. So memory is bounded, and in a storm the first events are the ones that users see.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sandpool.api.events import EventSpec
from sandpool.api.kinds import EVENT
from sandpool.api.resource import Object, SharedObject
from sandpool.engine.background import BackgroundGate
from sandpool.engine.clock import Clock, micro_timestamp, within
from sandpool.engine.ratelimit import RateLimiter
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, ApiError, NotFound
from sandpool.kube.retry import backoff_delay

_log = logging.getLogger(__name__)

# Limits of the API, in bytes.
_LONGEST_NOTE = 1024
_LONGEST_WORD = 128  # reason, action and reportingInstance
_LONGEST_NAME = 253
# Namespace of Events about cluster-scoped objects.
_CLUSTER_SCOPED_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """The object of an event. References that differ only in resourceVersion are equal."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""  # empty: cluster-scoped
    uid: str = ""
    resource_version: str = field(default="", compare=False)

    @classmethod
    def to(cls, obj: SharedObject) -> ObjectReference:
        metadata = obj["metadata"]
        return cls(
            obj["apiVersion"],
            obj["kind"],
            metadata["name"],
            metadata.get("namespace", ""),
            metadata.get("uid", ""),
            metadata.get("resourceVersion", ""),
        )

    def to_dict(self) -> Object:
        fields = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "resourceVersion": self.resource_version,
        }
        return {name: value for name, value in fields.items() if value}


def event_namespace(regarding: ObjectReference) -> str:
    return regarding.namespace or _CLUSTER_SCOPED_NAMESPACE


def event_name(regarding: ObjectReference, nanoseconds: int) -> str:
    """Name of an Event: the name of the object and the time, so that Events sort by object and names are unique."""
    name = f"{regarding.name}.{nanoseconds:x}"
    return name if len(name) <= _LONGEST_NAME else str(uuid.uuid4())


def new_event(regarding: ObjectReference, spec: EventSpec, name: str, instance: str, time: datetime) -> Object:
    """Build an Event object. ``instance`` tells the replicas of a reporter apart."""
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"name": name, "namespace": event_namespace(regarding)},
        "eventTime": micro_timestamp(time),
        "type": spec.type,
        "reason": clipped(spec.reason, _LONGEST_WORD),
        "action": clipped(spec.action, _LONGEST_WORD),
        "note": clipped(spec.note, _LONGEST_NOTE),
        "regarding": regarding.to_dict(),
        "reportingController": spec.reporter,
        "reportingInstance": clipped(f"{spec.reporter}-{instance}", _LONGEST_WORD),
    }


def series(count: int, last: datetime) -> Object:
    """The series of an Event with several occurrences; ``count`` includes the first."""
    return {"series": {"count": count, "lastObservedTime": micro_timestamp(last)}}


def clipped(text: str, limit: int) -> str:
    """Cut a text to at most ``limit`` bytes, at the end of a character and with an ellipsis."""
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return text
    return data[: limit - len("…".encode())].decode(errors="ignore") + "…"


_ATTEMPTS = 5
_FIRST_PAUSE = 1.0  # seconds; doubles
_LONGEST_PAUSE = 60.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_Key = tuple[ObjectReference, EventSpec]


@dataclass(slots=True)
class _Entry:
    """One Event, before and after it is written."""

    key: _Key
    first: datetime
    last: datetime
    last_at: float  # monotonic
    count: int = 1
    name: str = ""  # empty before the first attempt to write it
    stored: int = 0  # the count that the API has; 0: the Event does not exist there
    unwritten: bool = True  # exactly while it is in _ready, in _repeated or with a writer


class EventRecorder:
    """``instance`` tells the replicas of a controller apart; usually the host name. Each write waits for ``gate``."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        instance: str,
        *,
        gate: BackgroundGate | None = None,
        capacity: int = 2048,
        window: float = 360.0,
        spacing: float = 10.0,
        rate: float = 100.0,
        burst: int = 300,
        writers: int = 4,
    ) -> None:
        self.client = client
        self.clock = clock
        self.instance = instance
        self.gate = gate
        self.capacity = capacity
        self.window = window
        self.spacing = spacing
        self.writers = writers
        self.written = 0  # requests that succeeded
        self.dropped = 0  # occurrences that no Event shows
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()  # ordered by last occurrence
        self._ready: asyncio.Queue[_Entry] = asyncio.Queue()  # to be written now
        self._repeated: deque[tuple[float, _Entry]] = deque()  # to be written at that time, the earliest first
        self._new_repeat = asyncio.Event()  # set when _repeated stops being empty
        self._limiter = RateLimiter(rate, burst, clock)
        self._newest = 0  # nanoseconds in the newest name
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def event(self, regarding: ObjectReference, spec: EventSpec) -> None:
        """Queue an event about an object."""
        if self._stopping:
            self.dropped += 1
            return
        now = self.clock.monotonic()
        key = (regarding, spec)
        entry = self._entries.get(key)
        if entry is not None and (entry.unwritten or now - entry.last_at <= self.window):
            self._entries.move_to_end(key)
            entry.count += 1
            entry.last, entry.last_at = self.clock.now(), now
            if not entry.unwritten:
                self._write_later(entry)
        elif entry is not None or self._make_room():
            time = self.clock.now()
            entry = self._entries[key] = _Entry(key, time, time, now)
            self._entries.move_to_end(key)
            self._ready.put_nowait(entry)
        else:
            self.dropped += 1

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._write_ready(), name="event writer") for _ in range(self.writers)]
        self._tasks.append(asyncio.create_task(self._queue_repeated(), name="event timer"))

    async def stop(self, seconds: float = 5.0) -> None:
        """Write the remaining events for up to ``seconds``. Later events are dropped."""
        self._stopping = True
        while self._repeated:
            self._ready.put_nowait(self._repeated.popleft()[1])
        try:
            await within(self.clock, seconds, self._ready.join())
        except TimeoutError:
            left = sum(entry.count - entry.stored for entry in self._entries.values() if entry.unwritten)
            self.dropped += left
            _log.warning("%d events could not be written within %g s", left, seconds)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _make_room(self) -> bool:
        if len(self._entries) < self.capacity:
            return True
        quietest = next(iter(self._entries.values()))
        if quietest.unwritten:
            return False
        del self._entries[quietest.key]
        return True

    def _write_later(self, entry: _Entry) -> None:
        entry.unwritten = True
        if self._stopping:
            self._ready.put_nowait(entry)
        else:
            self._repeated.append((self.clock.monotonic() + self.spacing, entry))
            self._new_repeat.set()

    async def _queue_repeated(self) -> None:
        while True:
            await self._new_repeat.wait()
            self._new_repeat.clear()
            while self._repeated:
                due, entry = self._repeated[0]
                if (wait := due - self.clock.monotonic()) > 0:
                    await self.clock.sleep(wait)
                    continue  # check again: ``stop`` may have emptied the queue
                self._repeated.popleft()
                self._ready.put_nowait(entry)

    async def _write_ready(self) -> None:
        while True:
            entry = await self._ready.get()
            await self._limiter.wait()
            if self.gate is not None:
                await self.gate.wait()
            await self._write(entry)
            self._ready.task_done()

    async def _write(self, entry: _Entry) -> None:
        """Write an entry, with retries. Afterwards it is written or dropped."""
        for attempt in range(_ATTEMPTS):
            if attempt:
                await self.clock.sleep(backoff_delay(attempt, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE))
            try:
                await self._send(entry)
            except (ApiError, OSError) as error:
                failure: Exception = error
                if isinstance(error, ApiError) and error.code < 500 and error.code != 429:
                    break  # a retry would fail in the same way
            except Exception as error:  # noqa: BLE001 - one bad event must not block the others
                failure = error
                _log.error("writing an event failed", exc_info=error)
                break
            else:
                entry.unwritten = False
                if entry.count > entry.stored:
                    self._write_later(entry)
                return
        _log.info("dropped an event about %s %s: %s", entry.key[0].kind, entry.key[0].name, failure)
        self.dropped += entry.count - entry.stored
        del self._entries[entry.key]

    async def _send(self, entry: _Entry) -> None:
        regarding, spec = entry.key
        namespace = event_namespace(regarding)
        count, repeats = entry.count, series(entry.count, entry.last)
        if entry.stored:
            try:
                await self.client.patch(EVENT, entry.name, MergePatch(repeats), namespace)
            except NotFound:
                entry.name, entry.stored = "", 0  # the Event has expired: create another
        if not entry.stored:
            entry.name = entry.name or self._new_name(entry)
            event = new_event(regarding, spec, entry.name, self.instance, entry.first)
            try:
                await self.client.create(EVENT, event | repeats if count > 1 else event)
            except AlreadyExists:
                count = 1  # an earlier attempt without a response succeeded, with the count of that time
        entry.stored = count
        self.written += 1

    def _new_name(self, entry: _Entry) -> str:
        self._newest = max(self._newest + 1, (entry.first - _EPOCH) // _MICROSECOND * 1000)
        return event_name(entry.key[0], self._newest)
