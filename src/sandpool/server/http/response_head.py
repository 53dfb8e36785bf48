"""Response heads: status line and headers."""

from __future__ import annotations

from datetime import datetime
from email.utils import format_datetime
from http import HTTPStatus

from sandpool.kube.errors import ApiError
from sandpool.server.request.messages import Response

_PHRASES = {status.value: status.phrase for status in HTTPStatus}

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


class HeadCache:
    """Caches the first lines of a head, which depend on status, content type and the current second."""

    def __init__(self) -> None:
        self._date = ""
        self._prefixes: dict[tuple[int, str], bytes] = {}

    def set_date(self, now: datetime) -> None:
        self._date = format_datetime(now, usegmt=True)
        self._prefixes.clear()

    def prefix(self, status: int, content_type: str) -> bytes:
        """The head up to the value of Audit-Id."""
        found = self._prefixes.get((status, content_type))
        if found is None:
            found = self._prefixes[status, content_type] = (
                f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}\r\n"
                "Cache-Control: no-cache, private\r\n"
                f"Content-Type: {content_type}\r\n"
                f"Date: {self._date}\r\n"
                "Audit-Id: "
            ).encode("latin-1", "replace")
        return found


def lines(headers: list[tuple[str, str]]) -> bytes:
    """Additional header lines. Values with a line break are dropped: they would inject headers."""
    text = "".join(f"{name}: {value}\r\n" for name, value in headers if "\r" not in value and "\n" not in value)
    return text.encode("latin-1", "replace")


def failure(error: ApiError) -> Response:
    """The response for an error: its Status and Retry-After."""
    headers = [] if error.retry_after is None else [("Retry-After", str(int(error.retry_after)))]
    return Response(status=error.code, object=error.status(), headers=headers)


def internal_error(audit_id: str) -> ApiError:
    """The error for an unexpected failure: it names the log entry and reveals nothing else."""
    return ApiError(f"Internal error occurred: the server log has the cause under request {audit_id}")
