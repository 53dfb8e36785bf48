"""``/files``: the content of files, up and down, with a token or a signed URL."""

from __future__ import annotations

import asyncio
import posixpath
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Final

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from sandpool.e2b.errors import Refusal
from sandpool.e2b.running import RunningSandbox
from sandpool.service.errors import FileError
from sandpool.service.filesystem import DiskFull, Entry, IsDirectory, NoSuchFile, NotDirectory

_CHUNK: Final = 1 << 16
#: Seconds without a byte of an upload.
_IDLE_SECONDS: Final = 60.0
_MULTIPART: Final = "multipart/form-data"
_METADATA_PREFIX: Final = "x-metadata-"
_MAX_FILES: Final = 1000
_FILE_NAME: Final = re.compile(r';\s*filename="((?:[^"\\]|\\.)*)"')


async def download(request: web.Request, sandbox: RunningSandbox) -> web.StreamResponse:
    """Answer with the content of a file as it is read."""
    path = _path(request)
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    filesystem = sandbox.service.filesystem
    await sandbox.check_user(request.query.get("username", ""))
    with _file_errors(), sandbox.reached():
        async with filesystem.reading(await sandbox.sandbox(), path) as content:
            await response.prepare(request)
            async for piece in content:
                await response.write(piece)
    await response.write_eof()
    return response


async def upload(request: web.Request, sandbox: RunningSandbox, most: int) -> web.StreamResponse:
    """Write one file from the body, or several from a form, and describe them."""
    if any(name.lower().startswith(_METADATA_PREFIX) for name in request.headers):
        raise Refusal(400, "metadata of files is not supported")
    await sandbox.check_user(request.query.get("username", ""))
    limit = _Limit(most)
    written = []
    with _file_errors(), sandbox.reached():
        target, filesystem = await sandbox.sandbox(), sandbox.service.filesystem
        if request.content_type == _MULTIPART:
            async for path, part in _parts(request):
                written.append(_info(await filesystem.write(target, path, _pieces_of_part(part, limit))))
        else:
            pieces = _pieces(request.content, limit)
            written.append(_info(await filesystem.write(target, _path(request), pieces)))
    return web.json_response(written)


async def _parts(request: web.Request) -> AsyncIterator[tuple[str, BodyPartReader]]:
    """The files of a form, with the paths that they are written to."""
    only = request.query.get("path", "")
    files = 0
    with _form_errors():
        form = await request.multipart()
        while (part := await form.next()) is not None:
            if not isinstance(part, BodyPartReader) or part.name != "file":
                continue
            files += 1
            if files > _MAX_FILES or (only and files > 1):
                raise Refusal(400, "the form has more files than the request allows")
            path = only or _file_name(part.headers.get("Content-Disposition", ""))
            if not path:
                raise Refusal(400, "a file of the form has no name")
            yield path, part
    if not files:
        raise Refusal(400, "the form has no files")


def _file_name(disposition: str) -> str:
    """The name of a file in a form. Clients put absolute paths there, which aiohttp would make relative ones."""
    match = _FILE_NAME.search(disposition)
    return "" if match is None else re.sub(r"\\(.)", r"\1", match[1]).replace("%22", '"')


class _Limit:
    """Counts the bytes of an upload."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.seen = 0

    def count(self, size: int) -> None:
        self.seen += size
        if self.seen > self.most:
            raise Refusal(413, f"the upload is larger than {self.most >> 20} MiB")


async def _pieces(content: Any, limit: _Limit) -> AsyncIterator[bytes]:
    while True:
        async with asyncio.timeout(_IDLE_SECONDS):
            piece: bytes = await content.read(_CHUNK)
        if not piece:
            return
        limit.count(len(piece))
        yield piece


async def _pieces_of_part(part: BodyPartReader, limit: _Limit) -> AsyncIterator[bytes]:
    while not part.at_eof():
        with _form_errors():
            async with asyncio.timeout(_IDLE_SECONDS):
                piece = await part.read_chunk(_CHUNK)
        if piece:
            limit.count(len(piece))
            yield bytes(piece)


def _path(request: web.Request) -> str:
    path = request.query.get("path", "")
    if not path:
        raise Refusal(400, "the query needs a path")
    return path


def _info(entry: Entry) -> dict[str, str]:
    return {"name": posixpath.basename(entry.path), "type": "file", "path": entry.path}


@contextmanager
def _form_errors() -> Iterator[None]:
    """Refuse a form that cannot be read."""
    try:
        yield
    except (ValueError, AssertionError, HttpProcessingError):
        raise Refusal(400, "the form cannot be read") from None


@contextmanager
def _file_errors() -> Iterator[None]:
    """Raise errors of files as answers."""
    try:
        yield
    except NoSuchFile as error:
        raise Refusal(404, str(error)) from error
    except (IsDirectory, NotDirectory) as error:
        raise Refusal(400, str(error)) from error
    except DiskFull as error:
        raise Refusal(507, str(error)) from error
    except FileError as error:
        raise Refusal(500, str(error)) from error
