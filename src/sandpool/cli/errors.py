"""One-line messages for failures that users can cause. Imported only when a command fails."""

from __future__ import annotations

import asyncio

from sandpool.home.start import StartFailed
from sandpool.install.errors import InstallError
from sandpool.kube.errors import ApiError, Forbidden, InvalidName, Unauthorized
from sandpool.kube.kubeconfig import KubeconfigError
from sandpool.service.errors import ServiceError


def explain(error: BaseException) -> str | None:
    """Return the message for an expected failure; None for one that only a defect of the program explains."""
    if isinstance(error, BaseExceptionGroup):
        messages = [explain(each) for each in error.exceptions]
        return messages[0] if None not in messages else None
    if isinstance(error, Unauthorized):
        return f"the API rejected the credentials: {error}"
    if isinstance(error, Forbidden):
        return f"{error}\nRun this command as an administrator, or ask one for this permission"
    if isinstance(error, ApiError):
        return f"the API refused: {error}"
    if isinstance(error, KubeconfigError | InstallError | InvalidName | ServiceError | StartFailed):
        return str(error)
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return str(error) or "no answer in time; is the home or the cluster running? See `sandpool status`"
    if isinstance(error, OSError):
        return str(error) or type(error).__name__
    return None
