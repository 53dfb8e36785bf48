"""The path of a request as HTTPRoutes compare it. A path that a server could read as another path is rejected.

A route admits requests by a prefix of the path and forwards the path unchanged. Servers in sandboxes read paths in
different ways: some resolve ``..``, some decode ``%2f`` before they split the path and some after, some take ``\\`` for
``/``. A path that leaves a prefix in any of these readings is therefore rejected everywhere. Rewriting it in one of
these ways would be wrong for the others; browsers and HTTP libraries resolve dots before they send a path (RFC 3986,
5.2.4).

Empty segments stay: RFC 3986 does not equate ``//`` with ``/``, and merging them leaves no prefix.
"""

from __future__ import annotations

import re
from typing import Final

from sandpool.router.destination import RequestRejected

_ENCODED: Final = re.compile(r"%([0-9a-fA-F]{2})")
#: Characters that mean the same encoded and not encoded (RFC 3986, 2.3).
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SEPARATOR: Final = re.compile(r"/|\\|%2f|%5c", re.IGNORECASE)
_DOT_SEGMENTS: Final = frozenset({".", ".."})


def comparable(path: str) -> str:
    """Decode unreserved characters. Raises ``RequestRejected`` if the path can be read as another one."""
    decoded = _ENCODED.sub(_decode_unreserved, path)
    # Some servers strip parameters behind a semicolon; some cut the path at a number sign.
    if "#" in decoded or any(segment.partition(";")[0] in _DOT_SEGMENTS for segment in _SEPARATOR.split(decoded)):
        raise RequestRejected(400, "The path can be read as another one. Send it without '.', '..' and '#'.")
    return decoded


def _decode_unreserved(encoded: re.Match[str]) -> str:
    character = chr(int(encoded[1], 16))
    return character if character in _UNRESERVED else encoded[0]
