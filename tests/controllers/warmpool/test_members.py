from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from sandpool.api.kinds import SANDBOX
from sandpool.api.labels import LAUNCH_TYPE, SAFE_TO_EVICT, TEMPLATE_HASH, WARM_POOL
from sandpool.api.resource import Object
from sandpool.api.views import SandboxView, TemplateView
from sandpool.controllers.revision import TemplateRevision
from sandpool.controllers.sandbox.pod import new_pod
from sandpool.controllers.warmpool.members import (
    Orphans,
    RevisionComparison,
    adoption,
    deletion,
    new_member,
    plan_orphans,
    repairs,
    sort_members,
)
from sandpool.controllers.writer import Delete, Patch

if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene


def names(sandboxes: tuple[SandboxView, ...]) -> list[str]:
    return [sandbox.name for sandbox in sandboxes]


def test_members_are_owned_by_uid(scene: Scene) -> None:
    sandboxes = [
        scene.member("mine"),
        scene.member("of-a-former-pool-of-that-name", owner="old-pool-uid"),
        scene.member("claimed", owner="claim-uid"),
        scene.member("orphan", owner=None),
    ]
    members = sort_members(scene.pool(), sandboxes, frozenset())
    assert names(members.owned) == ["mine"]
    assert names(members.orphans) == ["orphan"]
    assert members.terminating == 0


def test_owner_reference_of_any_version_counts(scene: Scene) -> None:
    member = scene.member("m")  # its reference says v1alpha1
    assert sort_members(scene.pool(), [member], frozenset()).owned == (member,)


def test_r19_terminating_members_are_counted(scene: Scene) -> None:
    sandboxes = [
        scene.member("marked", deleting=True),
        scene.member("asked-for"),
        scene.member("foreign", deleting=True, owner="claim-uid"),
        scene.member("orphan", deleting=True, owner=None),
        scene.member("here-to-stay"),
    ]
    members = sort_members(scene.pool(), sandboxes, {"uid-asked-for", "uid-long-gone"})
    assert members.terminating == 2
    assert names(members.owned) == ["here-to-stay"]
    assert members.orphans == ()


def test_r10_orphan_needs_the_label_of_the_pool(scene: Scene) -> None:
    sandboxes = [
        scene.member("other", owner=None, pool="other-pool"),
        scene.member("none", owner=None, labels={WARM_POOL: None}),
    ]
    assert sort_members(scene.pool(), sandboxes, frozenset()).orphans == ()


def test_r11_members_of_a_same_named_pool_in_another_namespace_are_ignored(scene: Scene) -> None:
    sandboxes = [scene.member("a", namespace="other"), scene.member("b", namespace="other", owner=None)]
    members = sort_members(scene.pool(), sandboxes, frozenset())
    assert (members.owned, members.orphans, members.terminating) == ((), (), 0)


def test_r29_members_of_another_pool_of_the_template_are_not_counted(scene: Scene) -> None:
    sandboxes = [scene.member("mine"), scene.member("theirs", owner="other-uid", pool="other-pool")]
    assert names(sort_members(scene.pool(), sandboxes, frozenset()).owned) == ["mine"]


def test_correct_member_needs_no_repair(scene: Scene) -> None:
    assert repairs([scene.member("m")], scene.pool()) == []


def test_missing_labels_are_restored(scene: Scene) -> None:
    member = scene.member("m", labels={LAUNCH_TYPE: None})
    observed = {"uid": "uid-m", "resourceVersion": "rv-m"}
    assert repairs([member], scene.pool()) == [
        Patch(SANDBOX, "m", {"metadata": {**observed, "labels": {LAUNCH_TYPE: "warm"}}})
    ]
    member = scene.member("m", labels={LAUNCH_TYPE: "cold", WARM_POOL: None})
    (patch,) = repairs([member], scene.pool())
    assert patch.body == {"metadata": {**observed, "labels": {LAUNCH_TYPE: "warm", WARM_POOL: "59733166"}}}


def test_orphan_is_adopted_with_its_observed_version(scene: Scene) -> None:
    orphan = scene.member("o", owner=None, labels={LAUNCH_TYPE: None})
    reference = {
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxWarmPool",
        "name": "test-pool",
        "uid": "pool-uid",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    observed = {"uid": "uid-o", "resourceVersion": "rv-o"}
    metadata = {**observed, "ownerReferences": [reference], "labels": {LAUNCH_TYPE: "warm"}}
    assert adoption(orphan, scene.pool()) == Patch(SANDBOX, "o", {"metadata": metadata})
    del metadata["labels"]
    assert adoption(scene.member("o", owner=None), scene.pool()).body == {"metadata": metadata}


def test_r12_deletion_has_the_observed_version(scene: Scene) -> None:
    # A claim changes the sandbox, so the API refuses a deletion of what it was before.
    assert deletion(scene.member("m")) == Delete(SANDBOX, "m", "uid-m", "rv-m")


if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene


def test_new_member_has_all_fields(scene: Scene) -> None:
    revision = scene.revision()
    assert new_member(scene.pool(), revision, "test-pool-abcde", enable_eviction=True) == {
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "Sandbox",
        "metadata": {
            "namespace": "ns",
            "name": "test-pool-abcde",
            "labels": {
                "agents.x-k8s.io/warm-pool-sandbox": "59733166",
                "agents.x-k8s.io/sandbox-template-ref-hash": "69155462",
                "agents.x-k8s.io/sandbox-template-hash": revision.hash,
                "agents.x-k8s.io/sandbox-pod-template-hash": revision.pod_template_hash,
                "agents.x-k8s.io/launch-type": "warm",
                "agents.x-k8s.io/created-by": "controller",
            },
            "annotations": {
                "agents.x-k8s.io/sandbox-template-ref": "test-template",
                "agents.x-k8s.io/pod-name": "test-pool-abcde",
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
            },
            "ownerReferences": [
                {
                    "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
                    "kind": "SandboxWarmPool",
                    "name": "test-pool",
                    "uid": "pool-uid",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "podTemplate": {
                "metadata": {
                    "labels": {
                        "agents.x-k8s.io/warm-pool-sandbox": "59733166",
                        "agents.x-k8s.io/sandbox-template-ref-hash": "69155462",
                        "agents.x-k8s.io/sandbox-template-hash": revision.hash,
                        "agents.x-k8s.io/sandbox-pod-template-hash": revision.pod_template_hash,
                    },
                },
                "spec": {
                    "containers": [{"name": "main", "image": "example.com/image:1"}],
                    "automountServiceAccountToken": False,
                    "dnsPolicy": "None",
                    "dnsConfig": {"nameservers": ["8.8.8.8", "1.1.1.1"]},
                },
            },
        },
    }


@pytest.mark.parametrize(
    ("said", "enabled", "expected"),
    [
        ({}, True, "true"),
        ({}, False, None),
        ({SAFE_TO_EVICT: "false"}, True, "false"),
        ({SAFE_TO_EVICT: "true"}, False, "true"),
        ({SAFE_TO_EVICT: ""}, True, ""),
    ],
)
def test_edge_31_eviction_setting_of_the_template_wins(
    scene: Scene, said: dict[str, str], enabled: bool, expected: str | None
) -> None:
    pod_template: Any = {"metadata": {"annotations": said}, "spec": {"containers": []}}
    template: Object = {"metadata": {"name": "t"}, "spec": {"podTemplate": pod_template}}
    revision = TemplateRevision.of(TemplateView.from_object(template))
    member = new_member(scene.pool(), revision, "m", enable_eviction=enabled)
    pod = new_pod(SandboxView.from_object(member))
    assert (pod["metadata"].get("annotations") or {}).get(SAFE_TO_EVICT) == expected


def test_new_member_is_owned_and_current(scene: Scene) -> None:
    pool, revision = scene.pool(), scene.revision()
    member = SandboxView.from_object(new_member(pool, revision, "m", enable_eviction=True))
    assert sort_members(pool, [member], frozenset()).owned == (member,)
    assert not RevisionComparison(revision).is_outdated(member)
    assert repairs([member], pool) == []


if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene


def sorted_names(sandboxes: tuple[SandboxView, ...]) -> list[str]:
    return sorted(sandbox.name for sandbox in sandboxes)


def vetted(
    scene: Scene, *orphans: SandboxView, missing: int, terminating: int = 0, expectations_met: bool = True
) -> Orphans:
    comparison = RevisionComparison(scene.revision())
    return plan_orphans(
        orphans, comparison, missing=missing, terminating=terminating, expectations_met=expectations_met
    )


def test_orphans_fill_the_pool(scene: Scene) -> None:
    orphans = scene.members(2, owner=None)
    assert sorted_names(vetted(scene, *orphans, missing=3).adopt) == ["m0", "m1"]
    assert vetted(scene, *orphans, missing=3).discard == ()


def test_best_orphans_are_adopted_and_the_rest_deleted(scene: Scene) -> None:
    orphans = [
        scene.member("unready", owner=None, ready=False, age=50),
        scene.member("young", owner=None, age=1),
        scene.member("old", owner=None, age=9),
    ]
    result = vetted(scene, *orphans, missing=1)
    assert (sorted_names(result.adopt), sorted_names(result.discard)) == (["old"], ["unready", "young"])


def test_r19_orphans_wait_for_terminating_members(scene: Scene) -> None:
    result = vetted(scene, *scene.members(3, owner=None), missing=2, terminating=1)
    assert len(result.adopt) == 1
    assert len(result.discard) == 1


def test_r18_orphans_wait_until_expectations_are_met(scene: Scene) -> None:
    foreign = scene.member("foreign", owner=None, image="example.com/evil")
    result = vetted(scene, foreign, *scene.members(3, owner=None), missing=0, expectations_met=False)
    assert (sorted_names(result.adopt), sorted_names(result.discard)) == ([], ["foreign"])


def test_edge_26_foreign_orphans_are_deleted(scene: Scene) -> None:
    foreign = scene.member("foreign", owner=None, image="example.com/evil")
    assert vetted(scene, foreign, missing=5) == Orphans(discard=(foreign,))


def test_r10_orphans_are_left_alone_without_a_template(scene: Scene) -> None:
    assert (
        plan_orphans(scene.members(2, owner=None), None, missing=5, terminating=0, expectations_met=True) == Orphans()
    )


if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene

NEW = "example.com/image:2"


def test_member_of_the_current_template_is_not_stale(scene: Scene) -> None:
    assert not RevisionComparison(scene.revision()).is_outdated(scene.member("m"))


def test_changed_image_makes_members_stale(scene: Scene) -> None:
    assert RevisionComparison(scene.revision(NEW)).is_outdated(scene.member("m"))


def test_edge_24_another_template_with_the_same_spec_makes_members_stale(scene: Scene) -> None:
    assert RevisionComparison(scene.revision(name="other")).is_outdated(scene.member("m"))


def test_edge_24_another_hash_with_the_same_spec_does_not_make_members_stale(scene: Scene) -> None:
    assert not RevisionComparison(scene.revision()).is_outdated(scene.member("m", labels={TEMPLATE_HASH: "8a7b6c5d"}))
    assert not RevisionComparison(scene.revision()).is_outdated(scene.member("m", labels={TEMPLATE_HASH: None}))


def test_edge_25_policies_of_the_template_do_not_make_members_stale(scene: Scene) -> None:
    revision = scene.revision(networkPolicyManagement="Unmanaged", envVarsInjectionPolicy="Allowed")
    assert revision.hash == scene.revision().hash
    assert not RevisionComparison(revision).is_outdated(scene.member("m"))


def test_edge_26_hash_label_of_an_orphan_is_not_trusted(scene: Scene) -> None:
    comparison = RevisionComparison(scene.revision(NEW))
    spoofed = scene.member("o", owner=None, labels={TEMPLATE_HASH: comparison.revision.hash})
    assert comparison.is_foreign(spoofed)
    assert not comparison.is_foreign(scene.member("o", owner=None, image=NEW, labels={TEMPLATE_HASH: "made-up"}))
    assert comparison.is_foreign(scene.member("o", owner=None, image=NEW, template="other"))


def test_members_of_one_former_revision_are_compared_once(scene: Scene) -> None:
    comparison = RevisionComparison(scene.revision(NEW))
    with patch.object(TemplateRevision, "matches", return_value=False) as matches:
        assert all(comparison.is_outdated(member) for member in scene.members(5))
        assert matches.call_count == 1
        unlabelled = scene.members(2, labels={TEMPLATE_HASH: None})
        assert all(comparison.is_outdated(member) for member in unlabelled)
        assert matches.call_count == 3


_KINDS_OF_MEMBERS: list[dict[str, Any]] = [
    {},
    {"image": NEW},
    {"labels": {TEMPLATE_HASH: None}},
    {"labels": {TEMPLATE_HASH: None}, "image": NEW},
    {"labels": {TEMPLATE_HASH: "8a7b6c5d"}},
    {"template": "other"},
]


@pytest.mark.parametrize("seed", range(20))
def test_members_are_outdated_together_as_they_are_alone(scene: Scene, seed: int) -> None:
    rng = Random(seed)
    members = [scene.member(f"m{number}", **rng.choice(_KINDS_OF_MEMBERS)) for number in range(12)]
    revision = scene.revision(rng.choice([NEW, "example.com/image:1"]))
    alone = RevisionComparison(revision)
    assert RevisionComparison(revision).outdated(members) == {each.uid for each in members if alone.is_outdated(each)}


def test_repairs_of_many_members_are_those_of_each(scene: Scene) -> None:
    lacking: list[dict[str, str | None]] = [{}, {}, {WARM_POOL: None}, {LAUNCH_TYPE: "cold"}, {}, {LAUNCH_TYPE: None}]
    members = [scene.member(f"m{number}", labels=labels) for number, labels in enumerate(lacking)]
    pool = scene.pool()
    assert repairs(members, pool) == [patch for member in members for patch in repairs([member], pool)]
    assert [patch.name for patch in repairs(members, pool)] == ["m2", "m3", "m5"]
