"""The path of a request as routes compare it; one that could be read as another path is refused.

A route lets in what begins with its path, and what it lets in goes on as it came. Sandboxes read paths in ways of their
own: some resolve ``..`` and some do not, some decode ``%2f`` before and some after, some take ``\\`` for ``/``. So a
path that leads out of a prefix for any of them is let in nowhere. Nor is it rewritten as one of them would do it: who
means well has resolved it before (RFC 3986, 5.2.4), as browsers and HTTP libraries do.

Empty names stay as they are. RFC 3986 does not take ``//`` for ``/``, and joining the two leads out of no prefix.
"""

from __future__ import annotations

import re
from typing import Final

from sandpool.router.destination import RequestRejected

_ENCODED: Final = re.compile(r"%([0-9a-fA-F]{2})")
#: Means the same encoded or not (RFC 3986, 2.3).
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_BETWEEN_NAMES: Final = re.compile(r"/|\\|%2f|%5c", re.IGNORECASE)
_DOTS: Final = frozenset({".", ".."})


def comparable(path: str) -> str:
    """With what need not be encoded as it is. Raises ``RequestRejected`` if somebody could take it for another path."""
    decoded = _ENCODED.sub(_readable, path)
    # What follows a semicolon are parameters to some; for others nothing follows a number sign.
    if "#" in decoded or any(name.partition(";")[0] in _DOTS for name in _BETWEEN_NAMES.split(decoded)):
        raise RequestRejected(400, "The path can be read as another one. Ask for it without '.', '..' and '#'.")
    return decoded


def _readable(encoded: re.Match[str]) -> str:
    meant = chr(int(encoded[1], 16))
    return meant if meant in _UNRESERVED else encoded[0]
