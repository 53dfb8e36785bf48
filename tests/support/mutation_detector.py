"""Mutation detector: finds code that changes an object it shares with a cache or with the in-process API.

No consumer may change what ``kube.shared_objects`` describes. Like client-go's ``KUBE_CACHE_MUTATION_DETECTOR``, the
detector takes a fingerprint of every shared object when it is handed out, and compares it when the object is replaced,
when it is dropped, and at the end of every test in which its owner handed out an object. That costs one serialisation
per change, and one more per object and test.

Violations are collected and not raised where they are found, because an informer survives exceptions of its handlers
and would hide them. ``verify_all`` returns them; the test suite fails on the first one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any
from weakref import WeakSet

import orjson

from sandpool.kube import shared_objects


class _Registry:
    """What all detectors of the process share. ``detectors`` are those whose owners handed out an object since the last
    ``verify_all``: owners of earlier tests stay in memory, and checking all of them would take most of a test run."""

    def __init__(self) -> None:
        self.detectors: WeakSet[MutationDetector] = WeakSet()
        self.violations: list[str] = []


_registry = _Registry()


class MutationDetector:
    """Fingerprints of the objects that one owner has handed out, at most one object per key."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._handed_out: dict[Hashable, tuple[Any, bytes]] = {}

    def remember(self, key: Hashable, shared: object) -> None:
        """Take the fingerprint of an object before it is handed out; check the object that had the key before."""
        self._verify(key)
        self._handed_out[key] = (shared, _fingerprint(shared))
        _registry.detectors.add(self)

    def forget(self, key: Hashable) -> None:
        """Check an object for the last time."""
        self._verify(key)
        self._handed_out.pop(key, None)

    def verify(self) -> None:
        """Check all objects that are handed out."""
        for key in self._handed_out:
            self._verify(key)

    def _verify(self, key: Hashable) -> None:
        known = self._handed_out.get(key)
        if known is None:
            return
        shared, before = known
        after = _fingerprint(shared)
        if after != before:
            self._handed_out[key] = (shared, after)  # report each change once
            change = f"  from {_text(before)}\n  to   {_text(after)}"
            _registry.violations.append(f"{self.owner} {key} was changed by a consumer:\n{change}")


def enable() -> None:
    """Give a detector to every owner constructed from now on."""
    shared_objects.use_detector(MutationDetector)


def disable() -> None:
    """Stop giving detectors to new owners. Existing owners keep theirs."""
    shared_objects.use_detector(None)


def verify_all() -> list[str]:
    """Check the objects of all living owners that handed out an object since the last call. Returns and clears the
    violations found since then."""
    detectors, _registry.detectors = list(_registry.detectors), WeakSet()
    for each in detectors:
        each.verify()
    found, _registry.violations = _registry.violations, []
    return found


def _fingerprint(shared: object) -> bytes:
    try:
        return orjson.dumps(shared, default=_plain, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return repr(shared).encode()  # values that JSON cannot hold, such as an integer of more than 64 bits


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return list(value)
    return repr(value)


def _text(fingerprint: bytes) -> str:
    return fingerprint.decode(errors="replace")
