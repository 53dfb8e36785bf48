"""Errors of the client. Each tells who failed, and ``retryable`` whether the same call may succeed later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING

from sandpool.kube.errors import ApiError, Forbidden, Unauthorized
from sandpool.kube.kubeconfig import KubeconfigError
from sandpool.service.errors import NotReadyInTime
from sandpool.service.errors import ServiceError as SandpoolError

if TYPE_CHECKING:
    from sandpool.sdk.code import Execution
    from sandpool.sdk.results import Result

__all__ = [
    "Diagnosis",
    "PoolExhausted",
    "Refused",
    "SandboxLost",
    "SandpoolError",
    "ServiceUnavailable",
    "TaskError",
    "service_errors",
]

#: Makes a context in which errors of a sandbox are explained.
Diagnosis = Callable[[], AbstractAsyncContextManager[None]]

_TOO_MANY_REQUESTS = 429
_SERVER_ERROR = 500


class TaskError(SandpoolError):
    """The user's command or code failed: it ended with an error, or took longer than allowed. ``result`` has its
    output."""

    def __init__(self, message: str, result: Result | Execution | None = None) -> None:
        super().__init__(message)
        self.result = result


class SandboxLost(SandpoolError):
    """The sandbox, or its state, is gone: out of memory, evicted, its node failed, or its claim was deleted or
    expired. ``reason`` is one word. The same work may succeed in another sandbox."""

    retryable = True

    def __init__(self, message: str, reason: str, advice: str = "") -> None:
        super().__init__(message, advice)
        self.reason = reason


class PoolExhausted(NotReadyInTime):
    """The pool had no sandbox ready within the time allowed."""


class ServiceUnavailable(SandpoolError):
    """The API did not answer, or answered that it is overloaded or failing."""

    retryable = True


class Refused(SandpoolError):
    """The API refused the request: it is not allowed, or not valid."""


@contextmanager
def service_errors() -> Iterator[None]:
    """Raise errors of the API and of the connection to it as errors of this module."""
    try:
        yield
    except (Unauthorized, Forbidden) as error:
        raise Refused(str(error), "The credentials of the kubeconfig decide what is allowed.") from error
    except ApiError as error:
        if error.code == _TOO_MANY_REQUESTS or error.code >= _SERVER_ERROR:
            raise ServiceUnavailable(f"the API failed: {error}") from error
        raise Refused(str(error)) from error
    except KubeconfigError as error:
        raise Refused(str(error)) from error
    except OSError as error:
        raise ServiceUnavailable(f"the API cannot be reached: {str(error) or type(error).__name__}") from error
