"""The mutation detector finds changes of shared objects, whatever they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from sandpool.kube.shared_objects import detector
from tests.support import mutation_detector
from tests.support.mutation_detector import MutationDetector, verify_all


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    yield
    mutation_detector.enable()
    verify_all()


class Address(NamedTuple):
    hosts: list[str]


@dataclass(frozen=True, slots=True)
class View:
    name: str
    labels: dict[str, str]
    address: Address = field(default_factory=lambda: Address([]))


def mutate_object(shared: Any) -> None:
    shared["metadata"]["labels"]["b"] = "2"


def mutate_view(shared: Any) -> None:
    shared.labels["b"] = "2"


def mutate_named_tuple(shared: Any) -> None:
    shared.address.hosts.append("node")


def mutate_behind_a_proxy(shared: Any) -> None:
    shared["labels"]["b"] = "2"


@pytest.mark.parametrize(
    ("shared", "mutate"),
    [
        ({"metadata": {"labels": {"a": "1"}}}, mutate_object),
        ({"metadata": {"labels": {"a": "1"}}, "huge": 2**70}, mutate_object),
        (View("a", {"a": "1"}), mutate_view),
        (View("a", {"a": "1"}), mutate_named_tuple),
        (MappingProxyType({"labels": {"a": "1"}}), mutate_behind_a_proxy),
    ],
    ids=["dict", "repr", "dataclass", "named tuple", "mapping"],
)
def test_changed_object_is_reported_once(shared: Any, mutate: Any) -> None:
    watched = MutationDetector("sandboxes")
    watched.remember("team/a", shared)
    watched.verify()  # finds nothing yet
    mutate(shared)
    (violation,) = verify_all()
    assert violation.startswith("sandboxes team/a was changed by a consumer:")
    watched.verify()
    assert verify_all() == []


def test_owner_that_handed_out_nothing_since_is_not_checked_again() -> None:
    watched, shared = MutationDetector("sandboxes"), {"spec": 1}
    watched.remember("a", shared)
    assert verify_all() == []
    shared["spec"] = 2
    assert verify_all() == []
    watched.remember("b", {})
    assert len(verify_all()) == 1


def test_change_is_found_when_the_object_is_replaced() -> None:
    watched, shared = MutationDetector("sandboxes"), {"spec": 1}
    watched.remember("a", shared)
    shared["spec"] = 2
    watched.remember("a", {"spec": 1})
    assert len(verify_all()) == 1


def test_change_is_found_when_the_object_is_dropped_and_not_afterwards() -> None:
    watched, shared = MutationDetector("sandboxes"), {"spec": 1}
    watched.remember("a", shared)
    shared["spec"] = 2
    watched.forget("a")
    shared["spec"] = 3
    watched.forget("a")
    assert len(verify_all()) == 1


def test_owner_gets_no_detector_while_detection_is_off() -> None:
    assert detector("sandboxes") is not None
    mutation_detector.disable()
    assert detector("sandboxes") is None
