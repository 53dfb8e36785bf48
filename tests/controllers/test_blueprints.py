"""When a blueprint is made, and when the one that was made will do."""

from __future__ import annotations

import pytest

from sandpool.api.resource import Object
from sandpool.controllers.blueprints import Blueprints
from sandpool.controllers.caches import Caches
from sandpool.testing.sandboxes import NAMESPACE, template


def version(number: int, generation: int = 1, **metadata: object) -> Object:
    return template(metadata={"resourceVersion": str(number), "generation": generation, **metadata})


@pytest.fixture
def caches() -> Caches:
    return Caches()


@pytest.fixture
def blueprints(caches: Caches) -> Blueprints:
    return Blueprints(caches)


def test_there_is_none_without_template(blueprints: Blueprints) -> None:
    assert blueprints.of(NAMESPACE, "python") is None


def test_it_is_made_once(caches: Caches, blueprints: Blueprints) -> None:
    caches.templates.observe(version(1))
    made = blueprints.of(NAMESPACE, "python")
    caches.templates.observe(version(2, labels={"color": "red"}))

    assert made is not None
    assert blueprints.of(NAMESPACE, "python") is made


@pytest.mark.parametrize(
    "change", [{"generation": 2}, {"generation": 1, "uid": "another"}], ids=["changed", "replaced"]
)
def test_it_is_made_again(caches: Caches, blueprints: Blueprints, change: dict[str, object]) -> None:
    caches.templates.observe(version(1))
    made = blueprints.of(NAMESPACE, "python")
    caches.templates.observe(template(metadata={"resourceVersion": "2", **change}))

    again = blueprints.of(NAMESPACE, "python")
    assert again is not None and again is not made


def test_it_goes_with_its_template(caches: Caches, blueprints: Blueprints) -> None:
    caches.templates.observe(version(1))
    blueprints.of(NAMESPACE, "python")
    caches.templates.observe_deletion(version(2))

    assert blueprints.of(NAMESPACE, "python") is None
