"""Refusals of the endpoint, in the shape that E2B's packages expect: a status and ``{"code", "message"}``."""

from __future__ import annotations

from sandpool.kube.errors import ApiError, Forbidden
from sandpool.service.errors import ClaimFailed, NotReadyInTime, NotRunning, ServiceError, UnknownName

_TOO_MANY = 429
_SERVER_ERROR = 500


class Refusal(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class SandboxGone(Refusal):
    """A request to a sandbox that does not run. Clients recognise "was not found" in a 502, and tell their user that
    the sandbox was killed or has reached its timeout."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(502, f"the sandbox {sandbox_id} was not found")


class SandboxUnreachable(Refusal):
    """A sandbox that exists and cannot be reached now. Clients recognise "port is not open" in a 502."""

    def __init__(self, sandbox_id: str, reason: str) -> None:
        super().__init__(502, f"the sandbox {sandbox_id} cannot be reached, its port is not open: {reason}")


def refusal_of(error: Exception) -> Refusal:
    """The answer to an error of the service layer or of the API behind it."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, NotReadyInTime):
        return Refusal(503, str(error))
    if isinstance(error, UnknownName):
        return Refusal(404, str(error))
    if isinstance(error, ClaimFailed | NotRunning):
        return Refusal(409, str(error))
    if isinstance(error, ServiceError):
        return Refusal(400, str(error))
    if isinstance(error, Forbidden):
        return Refusal(500, f"the endpoint may not do this: {error}")
    if isinstance(error, ApiError):
        overloaded = error.code in (_TOO_MANY, 503, 504)
        return Refusal(503 if overloaded else 500 if error.code >= _SERVER_ERROR else 400, f"the API refused: {error}")
    if isinstance(error, OSError):
        return Refusal(503, f"the API cannot be reached: {str(error) or type(error).__name__}")
    raise error
