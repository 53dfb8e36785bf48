"""What one sandbox was asked to do, what its owner was told, and whether the sandbox agrees.

A command appends a word of its own to a file. Whoever was told that it ran finds the word once; whoever was told that
it did not finds it nowhere; whoever was told nothing, because the connection broke, finds it at most once. A file that
was acknowledged is there as it was written; after an answer that was lost it is either the one or the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum


class Fate(Enum):
    """What was said of something that was asked for."""

    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Broken(AssertionError):
    """A promise was."""


class CommandLog:
    """Of one sandbox. ``owner`` is who to name when something is wrong."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._commands: dict[str, Fate] = {}
        self._files: dict[str, set[bytes | None]] = {}  # what each may hold; None: it is not there

    def commanded(self, word: str, fate: Fate) -> None:
        self._commands[word] = fate

    def wrote(self, name: str, content: bytes, fate: Fate) -> None:
        if fate is Fate.DONE:
            self._files[name] = {content}
        elif fate is Fate.UNKNOWN:
            self._files.setdefault(name, {None}).add(content)

    @property
    def files(self) -> list[str]:
        return sorted(self._files)

    def lost_all(self) -> None:
        """What is in the sandbox went with its pod, as it may without a disk. What comes of lost answers may still
        come, for instance of one that was on its way."""
        self._commands.clear()
        self._files.clear()

    def check_commands(self, words: Iterable[str]) -> None:
        """Against all that the sandbox has done. Raises ``Broken``."""
        done = Counter(words)
        for word, fate in self._commands.items():
            times = done[word]
            if times > 1 or (fate is Fate.DONE and times != 1) or (fate is Fate.REFUSED and times):
                raise Broken(f"{self.owner}: a command said to be {fate.value} ran {times} times: {word}")
        if strange := sorted(done.keys() - self._commands.keys()):
            raise Broken(f"{self.owner}: the sandbox did what nobody here has asked for: {strange}")

    def check_file(self, name: str, content: bytes | None) -> None:
        """Against what was read. Raises ``Broken``."""
        expected = self._files[name]
        if content not in expected:
            found = "nothing" if content is None else f"{len(content)} other bytes"
            raise Broken(f"{self.owner}: {name} was acknowledged, and now there is {found} in its place")
