"""Which sandbox and which of its ports a request is for: from the name of the host, or from headers.

A host is ``PORT-ID.DOMAIN``, as the packages build it. Clients that have one address for all sandboxes name the sandbox
in headers instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from sandpool.e2b.errors import Refusal

#: The ports of E2B's daemon and of its code interpreter, which the endpoint plays.
DAEMON_PORT: Final = 49983
INTERPRETER_PORT: Final = 49999

_HOST: Final = re.compile(r"([0-9]{1,5})-([a-z0-9][a-z0-9-]{0,62})\..+")
_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_MAX_PORT: Final = 65535


class Address(NamedTuple):
    """A port of a sandbox."""

    sandbox_id: str
    port: int

    @property
    def is_played(self) -> bool:
        """Whether the endpoint answers in place of the sandbox."""
        return self.port in (DAEMON_PORT, INTERPRETER_PORT)


def address_of(host: str, headers: Mapping[str, str]) -> Address | None:
    """The address that a request is for; None if it names no sandbox. Raises ``Refusal`` for one that cannot be."""
    if (match := _HOST.fullmatch(host.lower())) is not None:
        return Address(match[2], _port(match[1]))
    sandbox_id = headers.get("E2b-Sandbox-Id", "")
    if not sandbox_id:
        return None
    if not _ID.fullmatch(sandbox_id):
        raise Refusal(400, "the header E2b-Sandbox-Id is not the ID of a sandbox")
    return Address(sandbox_id, _port(headers.get("E2b-Sandbox-Port") or str(DAEMON_PORT)))


def _port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 5 or not 1 <= int(text) <= _MAX_PORT:
        raise Refusal(400, "the port of a sandbox must be a number from 1 to 65535")
    return int(text)
