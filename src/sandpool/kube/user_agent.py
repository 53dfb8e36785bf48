"""The User-Agent of requests: which program sends them, and for which of its own clients.

A program that serves others sends their requests with its own credentials. The audit log of the API could not tell them
apart, so the User-Agent has a second product for the client: ``sandpool-e2b/0.1.0 key/7e9fa6c148c2`` for the owner of
an API key, ``sandpool-dashboard/0.1.0 session/4b6f2c0d9e11`` for a browser or a language model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Final

from sandpool import __version__

DEFAULT: Final = f"sandpool/{__version__}"
_KEY: Final = " key/"
_SESSION: Final = " session/"
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,63}")

# A context variable, because one transport serves all clients; tasks that a request starts have its value too.
_client: ContextVar[str] = ContextVar("client that requests are sent for", default="")


def of_program(name: str) -> str:
    """The User-Agent of one of our programs, such as ``dashboard``."""
    return f"{_prefix(name)}{__version__}"


def is_of_program(agent: str, name: str) -> bool:
    """Whether any version of one of our programs sent a request."""
    return agent.startswith(_prefix(name))


def on_behalf_of_key(key_id: str) -> AbstractContextManager[None]:
    """Send the requests of the block on behalf of the owner of an API key. The ID may be any value of a label, also
    an empty one."""
    return _on_behalf_of(_KEY, key_id)


def on_behalf_of_session(session_id: str) -> AbstractContextManager[None]:
    """Send the requests of the block on behalf of a session. The ID is no secret of it."""
    return _on_behalf_of(_SESSION, session_id)


def shared_context() -> Context:
    """A context for a task that a request starts and all clients share: its requests are on behalf of none."""
    context = copy_context()
    context.run(_client.set, "")
    return context


@contextmanager
def _on_behalf_of(kind: str, id: str) -> Iterator[None]:  # noqa: A002
    if id and not _ID.fullmatch(id):
        raise ValueError(f"{id!r} is not the ID of a{kind.removesuffix('/')}")
    token = _client.set(kind + id if id else "")
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
    """The program, and the key or the session if there is one, as users read it."""
    program = agent.partition("/")[0]
    if program.startswith("sandpool"):
        for kind in (_KEY, _SESSION):
            rest, separator, id = agent.rpartition(kind)  # noqa: A001
            if separator and rest:
                return f"{program},{kind.removesuffix('/')} {id}"
    return program
