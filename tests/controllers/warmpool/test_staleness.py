from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch

from sandpool.api.labels import TEMPLATE_HASH
from sandpool.controllers.revision import TemplateRevision
from sandpool.controllers.warmpool.staleness import Staleness

if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene

NEW = "example.com/image:2"


def test_a_member_of_the_current_template_is_not_stale(scene: Scene) -> None:
    assert not Staleness(scene.revision()).is_stale(scene.member("m"))


def test_a_changed_image_makes_members_stale(scene: Scene) -> None:
    assert Staleness(scene.revision(NEW)).is_stale(scene.member("m"))


def test_edge_24_another_template_makes_members_stale_even_if_it_says_the_same(scene: Scene) -> None:
    assert Staleness(scene.revision(name="other")).is_stale(scene.member("m"))


def test_edge_24_another_hash_is_no_reason_if_the_meaning_is_the_same(scene: Scene) -> None:
    assert not Staleness(scene.revision()).is_stale(scene.member("m", labels={TEMPLATE_HASH: "8a7b6c5d"}))
    assert not Staleness(scene.revision()).is_stale(scene.member("m", labels={TEMPLATE_HASH: None}))


def test_edge_25_policies_of_the_template_change_nothing(scene: Scene) -> None:
    revision = scene.revision(networkPolicyManagement="Unmanaged", envVarsInjectionPolicy="Allowed")
    assert revision.hash == scene.revision().hash
    assert not Staleness(revision).is_stale(scene.member("m"))


def test_edge_26_the_hash_of_an_orphan_is_not_believed(scene: Scene) -> None:
    staleness = Staleness(scene.revision(NEW))
    spoofed = scene.member("o", owner=None, labels={TEMPLATE_HASH: staleness.revision.hash})
    assert staleness.is_foreign(spoofed)
    assert not staleness.is_foreign(scene.member("o", owner=None, image=NEW, labels={TEMPLATE_HASH: "made-up"}))
    assert staleness.is_foreign(scene.member("o", owner=None, image=NEW, template="other"))


def test_members_of_one_former_template_are_compared_once(scene: Scene) -> None:
    staleness = Staleness(scene.revision(NEW))
    with patch.object(TemplateRevision, "matches", return_value=False) as matches:
        assert all(staleness.is_stale(member) for member in scene.members(5))
        assert matches.call_count == 1
        unlabelled = scene.members(2, labels={TEMPLATE_HASH: None})
        assert all(staleness.is_stale(member) for member in unlabelled)
        assert matches.call_count == 3
