"""The names of runtimes that pods may ask for."""

from __future__ import annotations

from sandpool.node.runtimes.handlers import (
    ALIASES,
    SUPPORTED,
    UNSUPPORTED,
    refusal,
    tried,
    with_aliases,
    with_unsupported,
)


def test_every_handler_is_available_or_has_a_reason() -> None:
    available = with_aliases({"bwrap": 1})
    unavailable = with_unsupported(available, dict.fromkeys(("crun", "gvisor", "runc"), "it is too old"))
    assert available.keys() & unavailable.keys() == set()
    assert {*SUPPORTED, *ALIASES, *UNSUPPORTED} == available.keys() | unavailable.keys()
    assert all(unavailable.values())
    assert unavailable["runsc"] == unavailable["gvisor"]


def test_alias_is_the_same_runtime() -> None:
    runtime = object()
    available = with_aliases({"gvisor": runtime})
    assert available["runsc"] is runtime
    assert "runsc" not in with_unsupported(available, {})


def test_tried_lists_only_attempted_runtimes() -> None:
    unavailable = with_unsupported({}, {"gvisor": "runsc is not installed", "process": "it failed"})
    assert tried(unavailable) == {"gvisor": "runsc is not installed", "process": "it failed"}


def test_unavailable_runtime_is_reported_with_its_reason() -> None:
    assert refusal("gvisor", "it failed") == "runtime gvisor is not available on this node: it failed"
    assert refusal("strange", "") == "runtime strange is not available on this node"
