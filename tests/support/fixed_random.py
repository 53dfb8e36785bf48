"""A random generator without randomness, for code whose outcome must not depend on chance."""

from __future__ import annotations

from random import Random


class FixedRandom(Random):
    """Returns ``value`` instead of random numbers, and only zero bits. All other methods of ``Random`` use these."""

    def __new__(cls, value: float = 0.0) -> FixedRandom:
        return super().__new__(cls)

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.value = value

    def random(self) -> float:
        return self.value

    def getrandbits(self, k: int, /) -> int:
        return 0
