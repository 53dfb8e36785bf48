"""The User-Agent of requests: which program sends them, and for which of its own clients.

A program that serves others sends their requests with its own credentials. The audit log of the API could not tell them
apart, so the User-Agent has a second product for the client, such as ``sandpool-e2b/0.1.0 key/7e9fa6c148c2``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from sandpool import __version__

DEFAULT: Final = f"sandpool/{__version__}"
_KEY: Final = " key/"
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,63}")

# A context variable, because one transport serves all clients; tasks that a request starts have its value too.
_client: ContextVar[str] = ContextVar("client that requests are sent for", default="")


def of_program(name: str) -> str:
    """The User-Agent of one of our programs, such as ``dashboard``."""
    return f"{_prefix(name)}{__version__}"


def is_of_program(agent: str, name: str) -> bool:
    """Whether any version of one of our programs sent a request."""
    return agent.startswith(_prefix(name))


@contextmanager
def on_behalf_of_key(key_id: str) -> Iterator[None]:
    """Send the requests of the block on behalf of the owner of an API key. The ID may be any value of a label, also
    an empty one."""
    if key_id and not _ID.fullmatch(key_id):
        raise ValueError(f"{key_id!r} is not the ID of a key")
    token = _client.set(_KEY + key_id if key_id else "")
    try:
        yield
    finally:
        _client.reset(token)


def current(program: str) -> str:
    """The User-Agent of a request that is sent now by a program with this one."""
    return program + _client.get()


def _prefix(name: str) -> str:
    return f"sandpool-{name}/"


def shown(agent: str) -> str:
    """The program, and the key if there is one, as users read it."""
    program = agent.partition("/")[0]
    rest, separator, key = agent.rpartition(_KEY)
    return f"{program}, key {key}" if separator and rest and program.startswith("sandpool") else program
