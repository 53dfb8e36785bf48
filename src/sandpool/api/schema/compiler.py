"""Shapes become closures, each once, also where a shape contains itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from sandpool.api.schema.findings import Findings
from sandpool.api.schema.shape import Shape

# (value, what was stored in its place, findings) -> the value to store
Step = Callable[[Any, Any, Findings], Any]


class Compiler(ABC):
    def __init__(self) -> None:
        self._compiled: dict[int, Step] = {}

    def compile(self, shape: Shape) -> Step:
        """The closure of a shape. A shape that contains itself gets one that refers back to it."""
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
        """The closure of a shape that has none yet."""
