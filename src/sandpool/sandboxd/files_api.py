"""Files API: read, write, list and delete files as HTTP resources, on port 8080.

Responses have the shapes that clients of agent-sandbox's own daemon expect. There are two deliberate differences: no
change of the tree during a request leads a path out of the root, and deleting a link deletes the link itself.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import formatdate

from sandpool.sandboxd.atomic_write import NoSpace, atomic_writer
from sandpool.sandboxd.encoding import unquote
from sandpool.sandboxd.http import File, Request, Response
from sandpool.sandboxd.multipart_form import FormError, uploaded_file
from sandpool.sandboxd.root import PathEscape, Place, Root

_FILES = "/v1/files"
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_MODE = re.compile(r"0?[0-7]{3}")
#: Variables with one of these in their names are not shown.
_SECRET = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CRED", "KEY", "AUTH", "BEARER", "PRIVATE", "CERT")
_CODES = {
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "INVALID_ARGUMENT",
    409: "CONFLICT",
    416: "INVALID_ARGUMENT",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    507: "RESOURCE_EXHAUSTED",
}


class FilesApi:
    """``now`` is a monotonic clock. Environment variables with ``prefix`` are shown to every client, except those with
    names that look like secrets."""

    def __init__(self, root: Root, now: Callable[[], float], prefix: str = "SANDBOX_") -> None:
        self.root = root
        self.now = now
        self.prefix = prefix
        self.stopping = False
        self._started = now()

    def handle(self, request: Request) -> Response:
        try:
            return self._route(request)
        except PathEscape:
            return _problem(403, "the path leads out of the root directory")
        except FormError as error:
            return _problem(400, str(error))
        except OSError as error:
            return _problem(_status(error), error.strerror or str(error))

    def _route(self, request: Request) -> Response:
        if request.path == "/v1/health" and request.method in ("GET", "HEAD"):
            return self._health()
        if request.path == "/v1/metadata" and request.method in ("GET", "HEAD"):
            return Response.of({"env": self._shown(os.environ)})
        if request.path != _FILES and not request.path.startswith(f"{_FILES}/"):
            return _problem(404, "no such resource")
        path = unquote(request.path[len(_FILES) + 1 :])
        if "\0" in path:
            return _problem(400, "a path must not contain a NUL byte")
        match request.method:
            case "GET" | "HEAD":
                return self._read(path, request.headers)
            case "PUT":
                return self._write(path, request)
            case "DELETE":
                return self._delete(path, request.query.get("recursive", "").lower() in ("true", "1"))
        return _problem(405, "only GET, HEAD, PUT and DELETE are allowed")

    def _health(self) -> Response:
        if self.stopping:
            return _problem(503, "the daemon is stopping")
        return Response.of({"status": "ok", "uptime_seconds": int(self.now() - self._started)})

    def _shown(self, env: Mapping[str, str]) -> dict[str, str]:
        names = (name for name in env if name.startswith(self.prefix))
        return {name: env[name] for name in names if not any(part in name.upper() for part in _SECRET)}

    def _read(self, path: str, headers: Mapping[str, str]) -> Response:
        handle = self.root.open(path)
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            return self._list(path, handle)
        if not stat.S_ISREG(status.st_mode):
            os.close(handle)
            return _problem(400, "the path is neither a file nor a directory")
        about = {
            "Content-Type": "application/octet-stream",
            "Last-Modified": formatdate(status.st_mtime, usegmt=True),
            "Accept-Ranges": "bytes",
        }
        wanted = _RANGE.fullmatch(headers.get("range", "").strip())
        if wanted is None or wanted.groups() == ("", ""):
            return Response(200, File(handle, status.st_size), about)
        first, last = _bounds(wanted[1], wanted[2], status.st_size)
        if first > last:
            os.close(handle)
            return _problem(416, f"the file has {status.st_size} bytes")
        about["Content-Range"] = f"bytes {first}-{last}/{status.st_size}"
        return Response(206, File(handle, last - first + 1, first), about)

    def _list(self, path: str, handle: int) -> Response:
        try:
            names = sorted(os.listdir(handle))
        finally:
            os.close(handle)
        entries = [entry for name in names if (entry := self._entry(path, name)) is not None]
        return Response.of({"path": "/" + path.strip("/"), "entries": entries})

    def _entry(self, directory: str, name: str) -> dict[str, object] | None:
        """Describe a directory entry. Links are followed; None if a link is dangling or leads out of the root."""
        try:
            with self.root.find(f"{directory}/{name}") as place:
                status = place.stat()
        except (PathEscape, OSError):
            return None
        modified = datetime.fromtimestamp(int(status.st_mtime), UTC)
        return {
            "name": name.encode(errors="surrogateescape").decode(errors="replace"),
            "size": status.st_size,
            "type": "directory" if stat.S_ISDIR(status.st_mode) else "file",
            "modified_at": modified.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        }

    def _write(self, path: str, request: Request) -> Response:
        mode = request.query.get("mode", "0644")
        if not _MODE.fullmatch(mode):
            return _problem(400, "mode must be an octal number such as 0644")
        try:
            with (
                self.root.find(path, create_parents=True) as place,
                atomic_writer(place, int(mode, 8), request.announced_bytes) as file,
            ):
                for piece in _content(request):
                    file.write(piece)
        except (NotADirectoryError, IsADirectoryError) as error:
            return _problem(400, error.strerror or str(error))
        except NoSpace as error:
            return _problem(507, str(error))
        return Response(204)

    def _delete(self, path: str, recursive: bool) -> Response:
        with self.root.find(path, follow=False) as place:
            if not place.name:
                return self._clear(place, recursive)
            if not stat.S_ISDIR(place.stat().st_mode):
                os.unlink(place.name, dir_fd=place.directory)
            elif recursive:
                shutil.rmtree(place.name, dir_fd=place.directory)
            else:
                os.rmdir(place.name, dir_fd=place.directory)
        return Response(204)

    def _clear(self, root: Place, recursive: bool) -> Response:
        """Delete the content of the root directory. The directory itself stays."""
        if not recursive:
            return _problem(409, "the root directory cannot be deleted; recursive=true deletes what is in it")
        for name in os.listdir(root.directory):
            with suppress(FileNotFoundError):
                if stat.S_ISDIR(os.stat(name, dir_fd=root.directory, follow_symlinks=False).st_mode):
                    shutil.rmtree(name, dir_fd=root.directory)
                else:
                    os.unlink(name, dir_fd=root.directory)
        return Response(204)


def _content(request: Request) -> Iterator[bytes]:
    """Yield the file of a multipart form, or the whole body if it is not one."""
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        _, pieces = uploaded_file(request)
        return pieces
    return request.body()


def _bounds(first: str, last: str, size: int) -> tuple[int, int]:
    """Return offsets of the first and the last byte of a range, cut at the end of the file. Without ``first`` the
    range is the last ``last`` bytes (RFC 9110, 14.1.2)."""
    if not first:
        return max(size - int(last), 0), size - 1
    return int(first), min(int(last), size - 1) if last else size - 1


def _status(error: OSError) -> int:
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return 404
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return 403
        case errno.ENOTEMPTY | errno.EEXIST:
            return 409
        case errno.ENAMETOOLONG | errno.ELOOP | errno.EINVAL:
            return 400
    return 500


def _problem(status: int, message: str) -> Response:
    return Response.of({"code": _CODES[status], "message": message}, status)
