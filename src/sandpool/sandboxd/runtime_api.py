"""Runtime API: run a command, upload and download files, on port 8888.

Responses have the shapes that clients of the agent-sandbox Python runtime expect. Known defects of that runtime are
avoided: a path is decoded once, bytes of output that are not UTF-8 are replaced, uploads are streamed to disk, and no
change of the tree during a request leads a path out of the base directory.
"""

from __future__ import annotations

import os
import stat
from errno import EACCES, EINVAL, EISDIR, ELOOP, ENAMETOOLONG, ENOTDIR, ENXIO, EPERM, EROFS

from sandpool.sandboxd import commands
from sandpool.sandboxd.captured_output import DEFAULT_LIMIT
from sandpool.sandboxd.encoding import from_json, unquote
from sandpool.sandboxd.http import File, Request, Response
from sandpool.sandboxd.root import PathEscape, Root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_DENIED = Response.of({"message": "Access denied"}, 403)
_MAX_COMMAND_BYTES = 8 << 20
# The path cannot exist: a parent is a file, the name is too long, links form a loop, or a FIFO has no reader.
_NOT_FOUND = (ENOTDIR, ENAMETOOLONG, ELOOP, ENXIO)
# Why a file cannot be uploaded to a path, if that is not the fault of the daemon.
_UPLOAD_STATUS = {
    **dict.fromkeys((ENOTDIR, EISDIR, ENAMETOOLONG, ELOOP, EINVAL), 400),
    **dict.fromkeys((EACCES, EPERM, EROFS), 403),
}


class RuntimeApi:
    """``timeout`` limits a command in seconds, unless the request has a limit of its own. ``max_output`` limits the
    bytes of stdout and of stderr that a response has."""

    def __init__(self, root: Root, timeout: float = 300.0, max_output: int = DEFAULT_LIMIT) -> None:
        self.root = root
        self.timeout = timeout
        self.max_output = max_output

    def handle(self, request: Request) -> Response:
        try:
            return self._route(request)
        except PathEscape:
            return _DENIED
        except PermissionError:
            return _DENIED
        except OSError as error:
            return Response.of({"message": f"{error.strerror or error}"}, 500)

    def _route(self, request: Request) -> Response:
        verb, _, rest = request.path.lstrip("/").partition("/")
        path = unquote(rest)
        match request.method, verb:
            case "GET" | "HEAD", "":
                return Response.of({"status": "ok", "message": "Sandbox Runtime is active."})
            case "POST", "execute":
                return self._execute(request)
            case "POST", "upload":
                return self._upload(request)
            case "GET" | "HEAD", "download":
                return self._download(path)
            case "GET" | "HEAD", "list":
                return self._list(path)
            case "GET" | "HEAD", "exists":
                return Response.of({"path": path, "exists": self._exists(path)})
            case _, "" | "execute" | "upload" | "download" | "list" | "exists":
                return Response.of({"detail": "Method Not Allowed"}, 405)
        return Response.of({"detail": "Not Found"}, 404)

    def _execute(self, request: Request) -> Response:
        body = request.whole(_MAX_COMMAND_BYTES)
        if body is None:
            return Response.of({"detail": "the request is too long"}, 413)
        try:
            asked: Any = from_json(body)
        except ValueError as error:
            return _unprocessable("json_invalid", ["body"], f"JSON decode error: {error}")
        command = asked.get("command") if isinstance(asked, dict) else None
        if not isinstance(command, str):
            kind = "missing" if command is None else "string_type"
            return _unprocessable(kind, ["body", "command"], "Field required" if command is None else "not a string")
        timeout = asked.get("timeout_seconds")
        if timeout is not None and (
            isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0
        ):
            return _unprocessable(
                "greater_than", ["body", "timeout_seconds"], "a positive number of seconds is expected"
            )
        try:
            outcome = commands.run(
                commands.arguments(command),
                self.root.path,
                None,
                timeout or self.timeout,
                request.is_wanted,
                self.max_output,
            )
        except commands.NotStarted as error:
            return Response.of(_outcome("", f"Failed to execute command: {error}", 1, False))
        errors = outcome.stderr.decode(errors="replace")
        if outcome.timed_out:
            errors += f"Failed to execute command: it took longer than {timeout or self.timeout:g} seconds"
        answer = _outcome(outcome.stdout.decode(errors="replace"), errors, outcome.code, outcome.timed_out)
        if outcome.is_truncated:
            # Clients that know nothing of these fields show the note.
            answer["stderr"] = f"{errors}\n{outcome.truncation}\n"
            answer.update(truncated=True, stdout_bytes=outcome.stdout_size, stderr_bytes=outcome.stderr_size)
        return Response.of(answer)

    def _upload(self, request: Request) -> Response:
        from sandpool.sandboxd.atomic_write import NoSpace, atomic_writer
        from sandpool.sandboxd.multipart_form import FormError, uploaded_file

        try:
            name, pieces = uploaded_file(request)
            with (
                self.root.find(name, create_parents=True) as place,
                atomic_writer(place, 0o644, request.announced_bytes) as file,
            ):
                for piece in pieces:
                    file.write(piece)
        except FormError as error:
            return _unprocessable("missing", ["body", "file"], str(error))
        except NoSpace as error:
            return Response.of({"message": f"File upload failed: {error}"}, 507)
        except OSError as error:
            status = _UPLOAD_STATUS.get(error.errno or 0, 500)
            return Response.of({"message": f"File upload failed: {error.strerror or error}"}, status)
        return Response.of({"message": f"File '{name}' uploaded successfully."})

    def _download(self, path: str) -> Response:
        try:
            handle = self.root.open(path)
        except OSError as error:
            _raise_unless_not_found(error)
            return Response.of({"message": "File not found"}, 404)
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            os.close(handle)
            return Response.of({"message": "File not found"}, 404)
        name = path.rstrip("/").rpartition("/")[2]
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Disposition": f'attachment; filename="{_quoted(name)}"',
        }
        return Response(200, File(handle, status.st_size), headers)

    def _list(self, path: str) -> Response:
        try:
            handle = self.root.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            _raise_unless_not_found(error)
            return Response.of({"message": "Path is not a directory"}, 404)
        try:
            with os.scandir(handle) as entries:
                found = [_entry(entry, handle) for entry in entries]
        finally:
            os.close(handle)
        return Response.of(sorted(found, key=lambda each: str(each["name"])))

    def _exists(self, path: str) -> bool:
        try:
            with self.root.find(path) as place:
                place.stat()
        except OSError as error:
            _raise_unless_not_found(error)
            return False
        return True


def _raise_unless_not_found(error: OSError) -> None:
    """Re-raise an error unless it means that the path does not exist. Clients retry a 500, so a missing file must not
    become one."""
    if not isinstance(error, FileNotFoundError) and error.errno not in _NOT_FOUND:
        raise error


def _entry(entry: os.DirEntry[str], directory: int) -> dict[str, object]:
    status = os.stat(entry.name, dir_fd=directory, follow_symlinks=False)
    is_directory = stat.S_ISDIR(status.st_mode)
    return {
        "name": entry.name.encode(errors="surrogateescape").decode(errors="replace"),
        "size": status.st_size,
        "type": "directory" if is_directory else "file",
        "mod_time": status.st_mtime,
    }


def _outcome(stdout: str, stderr: str, code: int, timed_out: bool) -> dict[str, object]:
    return {"stdout": stdout, "stderr": stderr, "exit_code": code, "timed_out": timed_out}


def _unprocessable(kind: str, where: list[str], message: str) -> Response:
    return Response.of({"detail": [{"type": kind, "loc": where, "msg": message}]}, 422)


def _quoted(name: str) -> str:
    """Replace characters that would end a quoted string or the header."""
    return "".join(letter if letter.isprintable() and letter not in '"\\' else "_" for letter in name)
