"""Sandpool: agent sandboxes that are warm, isolated and handed out exactly once."""

from __future__ import annotations

# As in typing, whose import would take every command a fifth of the time in which `sandpool run` starts.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandpool.sdk.blocking import Client
    from sandpool.sdk.client import AsyncClient
    from sandpool.sdk.errors import PoolExhausted, SandboxLost, SandpoolError, ServiceUnavailable, TaskError

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "Client",
    "PoolExhausted",
    "SandboxLost",
    "SandpoolError",
    "ServiceUnavailable",
    "TaskError",
    "__version__",
]

# Imported on first use: every process of Sandpool imports this package, and few are clients.
_MODULES = {"Client": "sandpool.sdk.blocking", "AsyncClient": "sandpool.sdk.client"}
_ERRORS = "sandpool.sdk.errors"


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES.get(name, _ERRORS)), name)
