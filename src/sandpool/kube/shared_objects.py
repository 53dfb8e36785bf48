"""Lets a test rig observe the objects that caches and the in-process transport share with their callers.

They hand out their own objects instead of copies, because a copy per read would cost more than most reads. In return no
caller may change them. The mutation detector of the tests checks that (tests/support/mutation_detector.py). In
production there is none, and the owner of the objects compares with None once per change.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol


class MutationDetector(Protocol):
    """Observes the objects that one owner has handed out, at most one object per key."""

    def remember(self, key: Hashable, shared: object) -> None:
        """Called before an object is handed out; it replaces the object that had the key before."""
        ...

    def forget(self, key: Hashable) -> None:
        """Called when the owner drops an object."""
        ...


class _Choice:
    make: Callable[[str], MutationDetector] | None = None


def use_detector(make: Callable[[str], MutationDetector] | None) -> None:
    """Give a detector to every owner constructed from now on; None stops that. Existing owners keep theirs."""
    _Choice.make = None if make is None else staticmethod(make)


def detector(owner: str) -> MutationDetector | None:
    """A detector for the objects of ``owner``; None without a test rig."""
    return None if _Choice.make is None else _Choice.make(owner)
