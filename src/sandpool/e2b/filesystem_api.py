"""The service ``filesystem.Filesystem``: directories and descriptions of files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, Final, cast

from sandpool.e2b.documents import timestamp
from sandpool.e2b.rpc import Code, Message, RpcError
from sandpool.e2b.rpc_http import Call, ServerStream, Unary
from sandpool.e2b.watchers import Change, WatchRequest, changes
from sandpool.service.errors import FileError
from sandpool.service.filesystem import DiskFull, Entry, EntryType, FileExists, IsDirectory, NoSuchFile, NotDirectory
from sandpool.service.sandboxes import Sandbox

#: What is sent while nothing happens in a directory.
KEEPALIVE: Final[Mapping[str, Any]] = {"keepalive": {}}
_MAX_DEPTH: Final = 64
_TYPES: Final = {EntryType.FILE: "FILE_TYPE_FILE", EntryType.DIRECTORY: "FILE_TYPE_DIRECTORY"}


async def stat(call: Call, message: Message) -> Mapping[str, Any]:
    with _file_errors():
        sandbox = await _sandbox(call)
        return {"entry": _entry(await call.sandbox.service.filesystem.stat(sandbox, _path(message)))}


async def list_directory(call: Call, message: Message) -> Mapping[str, Any]:
    depth = min(message.number("depth") or 1, _MAX_DEPTH)
    with _file_errors():
        entries = await call.sandbox.service.filesystem.list(await _sandbox(call), _path(message), depth)
    return {"entries": [_entry(each) for each in entries]}


async def make_directory(call: Call, message: Message) -> Mapping[str, Any]:
    with _file_errors():
        sandbox = await _sandbox(call)
        return {"entry": _entry(await call.sandbox.service.filesystem.make_directory(sandbox, _path(message)))}


async def move(call: Call, message: Message) -> Mapping[str, Any]:
    source, destination = message.text("source"), message.text("destination")
    with _file_errors():
        sandbox = await _sandbox(call)
        return {"entry": _entry(await call.sandbox.service.filesystem.move(sandbox, source, destination))}


async def remove(call: Call, message: Message) -> Mapping[str, Any]:
    with _file_errors():
        await call.sandbox.service.filesystem.remove(await _sandbox(call), _path(message))
    return {}


async def watch_directory(call: Call, message: Message) -> AsyncIterator[Mapping[str, Any]]:
    """Stream the changes of a directory."""
    await call.sandbox.check_user(call.user)
    with _file_errors(), call.sandbox.reached():
        async with aclosing(cast("Any", changes(call.sandbox, _watch_request(message)))) as found:
            async for change in found:
                yield {"start": {}} if change is None else {"filesystem": _change(change)}


async def create_watcher(call: Call, message: Message) -> Mapping[str, Any]:
    """Collect the changes of a directory, to be fetched."""
    await call.sandbox.check_user(call.user)
    with _file_errors(), call.sandbox.reached():
        return {"watcherId": await call.sandbox.watchers.create(_watch_request(message))}


async def get_watcher_events(call: Call, message: Message) -> Mapping[str, Any]:
    """The changes since the last call."""
    return {"events": [_change(each) for each in call.sandbox.watchers.events(message.text("watcherId"))]}


async def remove_watcher(call: Call, message: Message) -> Mapping[str, Any]:
    """Stop collecting changes."""
    await call.sandbox.watchers.remove(message.text("watcherId"))
    return {}


UNARY: Final[Mapping[str, Unary]] = {
    "CreateWatcher": create_watcher,
    "GetWatcherEvents": get_watcher_events,
    "RemoveWatcher": remove_watcher,
    "Stat": stat,
    "ListDir": list_directory,
    "MakeDir": make_directory,
    "Move": move,
    "Remove": remove,
}
SERVER_STREAMS: Final[Mapping[str, ServerStream]] = {"WatchDir": watch_directory}


async def _sandbox(call: Call) -> Sandbox:
    await call.sandbox.check_user(call.user)
    with call.sandbox.reached():
        return await call.sandbox.sandbox()


def _watch_request(message: Message) -> WatchRequest:
    return WatchRequest(_path(message), message.flag("recursive"), message.flag("includeEntry"))


def _change(change: Change) -> Mapping[str, Any]:
    entry = {} if change.entry is None else {"entry": _entry(change.entry)}
    return {"name": _text(change.name), "type": f"EVENT_TYPE_{change.type}", **entry}


def _path(message: Message) -> str:
    return message.text("path") or "."


@contextmanager
def _file_errors() -> Iterator[None]:
    """Raise errors of files as errors of the protocol."""
    try:
        yield
    except NoSuchFile as error:
        raise RpcError(Code.NOT_FOUND, str(error)) from error
    except FileExists as error:
        raise RpcError(Code.ALREADY_EXISTS, str(error)) from error
    except (NotDirectory, IsDirectory) as error:
        raise RpcError(Code.INVALID_ARGUMENT, str(error)) from error
    except DiskFull as error:
        raise RpcError(Code.RESOURCE_EXHAUSTED, str(error)) from error
    except FileError as error:
        raise RpcError(Code.INTERNAL, str(error)) from error


def _entry(entry: Entry) -> Mapping[str, Any]:
    return {
        "name": _text(entry.name),
        "type": _TYPES.get(entry.type, "FILE_TYPE_UNSPECIFIED"),
        "path": _text(entry.path),
        "size": str(entry.size),
        "mode": entry.mode,
        "permissions": entry.permissions,
        "owner": _text(entry.owner),
        "group": _text(entry.group),
        "modifiedTime": timestamp(entry.modified),
        **({"symlinkTarget": _text(entry.link), "isSymlink": True} if entry.link is not None else {}),
    }


def _text(name: str) -> str:
    """A name of any bytes, as JSON can have it."""
    return name.encode(errors="surrogateescape").decode(errors="replace")
