"""Watches of directories: as a stream, and as a list that clients fetch from time to time.

The SDK's watch reports changes of a whole tree (``sdk.file_watch``); here they become the events of E2B, and those
below the directory are left out unless the client asks for them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from sandpool.e2b.rpc import Code, RpcError
from sandpool.kube.errors import ApiError
from sandpool.sdk.file_watch import FileEvent
from sandpool.sdk.files import AsyncFiles
from sandpool.service.errors import FileError, ServiceError
from sandpool.service.filesystem import Entry, EntryType, NotDirectory

if TYPE_CHECKING:
    from sandpool.e2b.running import RunningSandbox

#: Events that a watcher keeps until they are fetched, and characters of their names. The sandbox sends the names.
MAX_KEPT: Final = 10_000
MAX_NAMES: Final = 1 << 20
_TYPES: Final = {"created": "CREATE", "modified": "WRITE", "removed": "REMOVE"}
_GONE: Final = frozenset({"REMOVE", "RENAME"})


class WatchRequest(NamedTuple):
    """A directory to watch. ``described`` adds to every event what the file is then."""

    path: str
    recursive: bool = False
    described: bool = False


class Change(NamedTuple):
    """An event as E2B names it. ``name`` is relative to the watched directory."""

    type: str
    name: str
    entry: Entry | None = None

    @property
    def size(self) -> int:
        """The number of characters that the sandbox has chosen."""
        entry = self.entry
        described = () if entry is None else (entry.path, entry.owner, entry.group, entry.link or "")
        return len(self.name) + sum(map(len, described))


async def changes(running: RunningSandbox, request: WatchRequest) -> AsyncIterator[Change | None]:
    """Yield None once the directory is watched, and then its changes. Raises ``FileError``."""
    sandbox, service = await running.sandbox(), running.service
    directory = await service.filesystem.stat(sandbox, request.path)
    if directory.type is not EntryType.DIRECTORY:
        raise NotDirectory(f"{request.path} is not a directory")
    watch = AsyncFiles(service.commands, service.files, sandbox).watch(directory.path)
    async with watch:
        yield None
        async with aclosing(cast("Any", aiter(watch))) as events:
            async for event in events:
                for change in _translated(event, recursive=request.recursive):
                    if request.described and change.type not in _GONE:
                        yield change._replace(entry=await _described(running, f"{directory.path}/{change.name}"))
                    else:
                        yield change


class Watchers:
    """The watchers of one sandbox whose events are fetched."""

    def __init__(self, running: RunningSandbox, most: int) -> None:
        self._sandbox = running
        self._most = most
        self._watchers: dict[str, _Watcher] = {}

    async def create(self, request: WatchRequest) -> str:
        """Watch a directory; returns the ID of the watcher."""
        if len(self._watchers) >= self._most:
            raise RpcError(Code.RESOURCE_EXHAUSTED, f"the sandbox has {self._most} watchers, which is the limit")
        watcher = _Watcher(self._sandbox, request)
        watcher_id = secrets.token_hex(8)
        self._watchers[watcher_id] = watcher
        try:
            await watcher.started()
        except BaseException:
            await self.remove(watcher_id)
            raise
        return watcher_id

    def events(self, watcher_id: str) -> list[Change]:
        """The changes since the last call."""
        return self._get(watcher_id).fetch()

    async def remove(self, watcher_id: str) -> None:
        """Stop watching."""
        watcher = self._get(watcher_id)
        del self._watchers[watcher_id]
        await watcher.close()

    async def close(self) -> None:
        watchers, self._watchers = self._watchers, {}
        await asyncio.gather(*(each.close() for each in watchers.values()), return_exceptions=True)

    def _get(self, watcher_id: str) -> _Watcher:
        watcher = self._watchers.get(watcher_id)
        if watcher is None:
            raise RpcError(Code.NOT_FOUND, f"there is no watcher {watcher_id[:64]}")
        return watcher


class _Watcher:
    """Collects changes until they are fetched."""

    def __init__(self, running: RunningSandbox, request: WatchRequest) -> None:
        self._kept: list[Change] = []
        self._names = 0  # characters of the names of those
        self._overflown = False
        self._failure: Exception | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(running, request), name=f"watch in {running.id}")

    async def started(self) -> None:
        await self._ready

    def fetch(self) -> list[Change]:
        if self._overflown:
            raise RpcError(Code.RESOURCE_EXHAUSTED, "too many changes were not fetched: list the directory again")
        kept, self._kept, self._names = self._kept, [], 0
        if not kept and self._failure is not None:
            raise RpcError(Code.UNAVAILABLE, f"the watch ended: {self._failure}")
        return kept

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, running: RunningSandbox, request: WatchRequest) -> None:
        try:
            async with aclosing(cast("Any", changes(running, request))) as found:
                async for change in found:
                    if change is None:
                        self._ready.set_result(None)
                        continue
                    self._names += change.size
                    if len(self._kept) >= MAX_KEPT or self._names > MAX_NAMES:
                        self._overflown = True
                        return
                    self._kept.append(change)
            self._failure = FileError("the directory was removed")
        except (ServiceError, ApiError, OSError, RpcError) as error:
            if self._ready.done():
                self._failure = error
            else:
                self._ready.set_exception(error)
        finally:
            if not self._ready.done():
                self._ready.cancel()


def _translated(event: FileEvent, *, recursive: bool) -> Iterator[Change]:
    """The events of E2B for a change. A move is reported at both of its ends, as inotify does."""
    if event.kind == "overflow":
        raise RpcError(Code.RESOURCE_EXHAUSTED, "there were too many changes at once: list the directory again")
    if event.kind == "moved":
        found = [Change("RENAME", event.source or ""), Change("CREATE", event.path)]
    else:
        found = [Change(_TYPES[event.kind], event.path)] if event.kind in _TYPES else []
    yield from (change for change in found if recursive or "/" not in change.name)


async def _described(running: RunningSandbox, path: str) -> Entry | None:
    try:
        return await running.service.filesystem.stat(await running.sandbox(), path)
    except FileError:
        return None  # it is gone again
