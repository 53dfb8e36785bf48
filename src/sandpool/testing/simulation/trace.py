"""The trace of a simulation: readable lines, and a digest that compares two runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b


class Trace:
    """The last ``length`` entries; ``time`` gives the timestamp of each."""

    def __init__(self, time: Callable[[], float], *, length: int = 400) -> None:
        self.time = time
        self.steps = 0
        self._lines: deque[tuple[float, str, str]] = deque(maxlen=length)
        self._digest = blake2b(digest_size=16)

    def note(self, who: str, what: str) -> None:
        self.steps += 1
        moment = self.time()
        self._lines.append((moment, who, what))
        self._digest.update(f"{moment!r} {who} {what}\n".encode())

    def digest(self) -> str:
        """A hash that is equal for two runs with the same entries in the same order."""
        return self._digest.hexdigest()

    def lines(self, last: int | None = None) -> list[str]:
        chosen = list(self._lines)[-last if last is not None else None :]
        return [f"{moment:10.4f}  {who:<34} {what}" for moment, who, what in chosen]
