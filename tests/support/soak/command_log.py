"""The commands and files of one sandbox, the responses of its user, and a check of the sandbox against them.

Each command appends a unique word to a file. A command that was reported as executed has its word there once, a
rejected one never, and one without a response at most once. An acknowledged file has its content; after a lost response
it has the old or the new one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum


class Fate(Enum):
    """The response to a request."""

    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Broken(AssertionError):
    """A guarantee was violated."""


class CommandLog:
    """The log of one sandbox. ``owner`` names the user in errors."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._commands: dict[str, Fate] = {}
        self._files: dict[str, set[bytes | None]] = {}  # allowed contents of each file; None: absent

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
        """Forget the content of a sandbox that was deleted with its pod, as happens without a volume. Requests with
        lost responses may still take effect."""
        self._commands.clear()
        self._files.clear()

    def check_commands(self, words: Iterable[str]) -> None:
        """Compare with all words of the sandbox. Raises ``Broken``."""
        done = Counter(words)
        for word, fate in self._commands.items():
            times = done[word]
            if times > 1 or (fate is Fate.DONE and times != 1) or (fate is Fate.REFUSED and times):
                raise Broken(f"{self.owner}: a command said to be {fate.value} ran {times} times: {word}")
        if strange := sorted(done.keys() - self._commands.keys()):
            raise Broken(f"{self.owner}: the sandbox executed commands that were never sent: {strange}")

    def check_file(self, name: str, content: bytes | None) -> None:
        """Compare with the content of a file. Raises ``Broken``."""
        expected = self._files[name]
        if content not in expected:
            found = "nothing" if content is None else f"{len(content)} other bytes"
            raise Broken(f"{self.owner}: {name} was acknowledged, and now there is {found} in its place")
