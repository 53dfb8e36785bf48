"""Compiles shapes to closures, each shape once, including recursive shapes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from sandpool.api.schema.findings import Findings
from sandpool.api.schema.shape import Shape

# (value, stored value, findings) -> the value to store
Step = Callable[[Any, Any, Findings], Any]


class Compiler(ABC):
    def __init__(self) -> None:
        self._compiled: dict[int, Step] = {}

    def compile(self, shape: Shape) -> Step:
        """Return the closure of a shape. Recursive shapes refer back to their own closure."""
        known = self._compiled.get(id(shape))
        if known is not None:
            return known
        built: list[Step] = []

        def refer_back(value: Any, old: Any, found: Findings) -> Any:
            return built[0](value, old, found)

        self._compiled[id(shape)] = refer_back
        built.append(self._build(shape))
        self._compiled[id(shape)] = built[0]
        return built[0]

    @abstractmethod
    def _build(self, shape: Shape) -> Step:
        """Build the closure of a new shape."""
