"""Invalid and hostile input, reproducible by seed."""

from __future__ import annotations

from random import Random
from typing import Any


class Chaos:
    """Random values of any shape from one seed. Drawing each value from hypothesis would take most of the time."""

    SCALARS = (None, True, False, 0, 1, -1, 2**31, 2**53 + 1, 2**63, -(2**63), 1.5, 1e300, "", "0", "a", "A_", "a/b")
    TEXTS = ("a/b/c", "1Gi", "-1", "é", "\0", "x" * 300, "true", "2020-01-01T00:00:00Z", "$(A)", "[", "a\n\rb", "..")
    KEYS = ("metadata", "spec", "status", "name", "kind", "apiVersion", "f:spec", "k:{}", ".", "$patch", "a", "", "é")

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.pick = self.rng.choice

    def value(self, depth: int = 3) -> Any:
        shape = self.rng.randrange(10) if depth else 0
        if shape < 6:
            return self.pick(self.SCALARS + self.TEXTS)
        if shape < 8:
            return [self.value(depth - 1) for _ in range(self.rng.randrange(3))]
        return {self.pick(self.KEYS): self.value(depth - 1) for _ in range(self.rng.randrange(3))}

    def mutated(self, base: Any) -> Any:
        """Return an object with some values replaced, duplicated or removed."""
        for _ in range(self.rng.randrange(4)):
            base = self._mutation(base)
        return base

    def _mutation(self, value: Any) -> Any:
        stop = self.rng.random() < 0.08
        if isinstance(value, dict) and value and not stop:
            key = self.pick(list(value))
            match self.rng.randrange(12):
                case 0:
                    return {other: value[other] for other in value if other != key}
                case 1:
                    return {**value, self.pick(self.KEYS): self.value()}
            return {**value, key: self._mutation(value[key])}
        if isinstance(value, list) and value and not stop:
            index = self.rng.randrange(len(value))
            if self.rng.randrange(6) == 0:
                return [*value, value[index]]
            return [*value[:index], self._mutation(value[index]), *value[index + 1 :]]
        return self.value()
