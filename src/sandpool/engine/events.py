"""Events for people who ask what happened, written so that nobody has to wait for them.

``event`` only notes what happened and returns; writers of the recorder's own do the rest. What that promises:

* **A reconcile never waits for an event and never fails because of one.** What cannot be noted or written is counted
  in ``dropped`` and forgotten.
* **The same thing about the same object is one Event**, with a count and the time it happened last. It is written when
  it happens first and then at most every ``spacing`` seconds, with everything that happened meanwhile. A thing that
  has not happened for ``window`` seconds begins a new Event.
* **The API is not flooded.** After a burst at most ``rate`` events per second are written, and an API that is down is
  asked again with growing pauses, a few times.

The recorder remembers at most ``capacity`` Events, written and unwritten together. When it is full it forgets the one
that has been quiet for longest; if even that one is not written yet, more happens than can be written, and the new
one is dropped. So memory is bounded whatever happens, and in a storm the first to happen are the ones to be seen.
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
from sandpool.api.resource import Object
from sandpool.engine.background import BackgroundGate
from sandpool.engine.clock import Clock, micro_timestamp, within
from sandpool.engine.ratelimit import RateLimiter, backoff_delay
from sandpool.kube.client import Client, MergePatch
from sandpool.kube.errors import AlreadyExists, ApiError, NotFound

_log = logging.getLogger(__name__)

# What the API accepts, in bytes.
_LONGEST_NOTE = 1024
_LONGEST_WORD = 128  # of reason, action and reportingInstance
_LONGEST_NAME = 253
# Events live in a namespace; those about objects that do not, live in this one.
_NOWHERE = "default"


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """The object an event is about. Its resourceVersion is for information: the next version is the same object."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""  # empty: cluster-scoped
    uid: str = ""
    resource_version: str = field(default="", compare=False)

    @classmethod
    def to(cls, obj: Object) -> ObjectReference:
        metadata = obj["metadata"]
        return cls(
            obj["apiVersion"],
            obj["kind"],
            metadata["name"],
            metadata.get("namespace", ""),
            metadata.get("uid", ""),
            metadata.get("resourceVersion", ""),
        )

    def spelt_out(self) -> Object:
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
    return regarding.namespace or _NOWHERE


def event_name(regarding: ObjectReference, nanoseconds: int) -> str:
    """The object's name and the time, so that events sort by object and every one has its own name."""
    name = f"{regarding.name}.{nanoseconds:x}"
    return name if len(name) <= _LONGEST_NAME else str(uuid.uuid4())


def new_event(regarding: ObjectReference, spec: EventSpec, name: str, instance: str, time: datetime) -> Object:
    """``instance`` tells the replicas of a reporter apart."""
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"name": name, "namespace": event_namespace(regarding)},
        "eventTime": micro_timestamp(time),
        "type": spec.type,
        "reason": clipped(spec.reason, _LONGEST_WORD),
        "action": clipped(spec.action, _LONGEST_WORD),
        "note": clipped(spec.note, _LONGEST_NOTE),
        "regarding": regarding.spelt_out(),
        "reportingController": spec.reporter,
        "reportingInstance": clipped(f"{spec.reporter}-{instance}", _LONGEST_WORD),
    }


def series(count: int, last: datetime) -> Object:
    """What is added to an event that happened again; ``count`` includes the first time."""
    return {"series": {"count": count, "lastObservedTime": micro_timestamp(last)}}


def clipped(text: str, limit: int) -> str:
    """At most ``limit`` bytes of it, ending with an ellipsis and never in the middle of a character."""
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
    name: str = ""  # empty: it has not been tried to write it
    stored: int = 0  # the count the API has; 0: it does not have the Event
    unwritten: bool = True  # exactly while it is in _ready, in _repeated or in the hands of a writer


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
        self.dropped = 0  # things that happened and are in no Event
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()  # in the order in which they happened last
        self._ready: asyncio.Queue[_Entry] = asyncio.Queue()  # to be written now
        self._repeated: deque[tuple[float, _Entry]] = deque()  # to be written at that time, the earliest first
        self._new_repeat = asyncio.Event()  # set when _repeated stops being empty
        self._limiter = RateLimiter(rate, burst, clock)
        self._newest = 0  # nanoseconds in the newest name
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def event(self, regarding: ObjectReference, spec: EventSpec) -> None:
        """Note that something happened to an object."""
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
        self._tasks.append(asyncio.create_task(self._wake_repeated(), name="event timer"))

    async def stop(self, seconds: float = 5.0) -> None:
        """Write what is left, as far as that can be done in this time. What happens from now on is dropped."""
        self._stopping = True
        while self._repeated:
            self._ready.put_nowait(self._repeated.popleft()[1])
        try:
            await within(self.clock, seconds, self._ready.join())
        except TimeoutError:
            left = sum(entry.count - entry.stored for entry in self._entries.values() if entry.unwritten)
            self.dropped += left
            _log.warning("%d events could not be written in the %g s there were for it", left, seconds)
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

    async def _wake_repeated(self) -> None:
        while True:
            await self._new_repeat.wait()
            self._new_repeat.clear()
            while self._repeated:
                due, entry = self._repeated[0]
                if (wait := due - self.clock.monotonic()) > 0:
                    await self.clock.sleep(wait)
                    continue  # looking again: stopping empties it meanwhile
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
        """Write, or try to; either way the entry is settled afterwards."""
        for attempt in range(_ATTEMPTS):
            if attempt:
                await self.clock.sleep(backoff_delay(attempt, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE))
            try:
                await self._send(entry)
            except (ApiError, OSError) as error:
                failure: Exception = error
                if isinstance(error, ApiError) and error.code < 500 and error.code != 429:
                    break  # it would say the same next time
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one event, the others are written
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
                entry.name, entry.stored = "", 0  # events do not live long; this is the beginning of another
        if not entry.stored:
            entry.name = entry.name or self._new_name(entry)
            event = new_event(regarding, spec, entry.name, self.instance, entry.first)
            try:
                await self.client.create(EVENT, event | repeats if count > 1 else event)
            except AlreadyExists:
                count = 1  # an attempt of which we heard nothing got through after all, with what there was then
        entry.stored = count
        self.written += 1

    def _new_name(self, entry: _Entry) -> str:
        self._newest = max(self._newest + 1, (entry.first - _EPOCH) // _MICROSECOND * 1000)
        return event_name(entry.key[0], self._newest)
