"""Errors of the service layer. The message says what is wrong; ``advice`` says what to do about it."""

from __future__ import annotations

from collections.abc import Iterable


class ServiceError(Exception):
    """An error for the user. ``retryable`` tells whether the same call may succeed later without a change."""

    retryable = False

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(f"{message}\n{advice}" if advice else message)
        self.message = message
        self.advice = advice


class UnknownName(ServiceError):
    """No object has this name."""


class NameTaken(ServiceError):
    """An object with this name exists."""


class ClaimFailed(ServiceError):
    """The claim cannot be served, and waiting does not help."""


class ClaimGone(ClaimFailed):
    """The claim expired or was deleted while it was waited for."""


class NotReadyInTime(ServiceError):
    """The object did not become ready in the time that the caller allows."""

    retryable = True


class NotRunning(ServiceError):
    """The sandbox exists and does not run: it is suspended, starting or ended."""


class CommandFailed(ServiceError):
    """The command could not be started, or the connection to it broke."""


class FileError(ServiceError):
    """A file or directory cannot be copied or listed."""


def unknown_name(kind: str, name: str, namespace: str, known: Iterable[str], advice: str = "") -> UnknownName:
    """An error that names the close matches among the ``known`` names, or says how to list them."""
    from difflib import get_close_matches  # slow to import, and needed for errors only

    names = sorted(set(known))
    message = f'there is no {kind} "{name}" in namespace "{namespace}"'
    if close := get_close_matches(name, names, n=3, cutoff=0.5):
        return UnknownName(message, f"Did you mean {' or '.join(close)}?")
    return UnknownName(message, advice)
