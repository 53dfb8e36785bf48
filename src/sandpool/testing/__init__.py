"""Test code that uses agent sandboxes: simulated worlds with the real API server and the real controllers.

Name the pytest plugin ``sandpool.testing.fixtures`` in a ``conftest.py`` and use the fixture ``simulate``.
``InProcessBackend`` and ``World`` run the same parts in real time, for code that cannot use a simulated clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandpool.testing.backend import InProcessBackend
    from sandpool.testing.clock import ManualClock
    from sandpool.testing.fixtures import Simulate
    from sandpool.testing.world import World

__all__ = ["InProcessBackend", "ManualClock", "Simulate", "World"]

_MODULES = {"InProcessBackend": "backend", "ManualClock": "clock", "Simulate": "fixtures", "World": "world"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the package itself stays cheap to import."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
