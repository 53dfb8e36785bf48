from __future__ import annotations

from typing import TYPE_CHECKING

from sandpool.api.kinds import SANDBOX
from sandpool.api.labels import LAUNCH_TYPE, WARM_POOL
from sandpool.api.views import SandboxView
from sandpool.controllers.warmpool.members import adoption, deletion, repair, sort_members
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


def test_the_version_in_an_owner_reference_does_not_matter(scene: Scene) -> None:
    member = scene.member("m")  # its reference says v1alpha1
    assert sort_members(scene.pool(), [member], frozenset()).owned == (member,)


def test_r19_members_on_their_way_out_are_counted(scene: Scene) -> None:
    sandboxes = [
        scene.member("marked", deleting=True),
        scene.member("asked-for"),
        scene.member("somebody-elses", deleting=True, owner="claim-uid"),
        scene.member("orphan", deleting=True, owner=None),
        scene.member("here-to-stay"),
    ]
    members = sort_members(scene.pool(), sandboxes, {"uid-asked-for", "uid-long-gone"})
    assert members.terminating == 2
    assert names(members.owned) == ["here-to-stay"]
    assert members.orphans == ()


def test_r10_an_orphan_needs_the_pools_label(scene: Scene) -> None:
    sandboxes = [
        scene.member("other", owner=None, pool="other-pool"),
        scene.member("none", owner=None, labels={WARM_POOL: None}),
    ]
    assert sort_members(scene.pool(), sandboxes, frozenset()).orphans == ()


def test_r11_other_namespaces_have_pools_of_the_same_name(scene: Scene) -> None:
    sandboxes = [scene.member("a", namespace="other"), scene.member("b", namespace="other", owner=None)]
    members = sort_members(scene.pool(), sandboxes, frozenset())
    assert (members.owned, members.orphans, members.terminating) == ((), (), 0)


def test_r29_pools_of_one_template_do_not_count_each_others_members(scene: Scene) -> None:
    sandboxes = [scene.member("mine"), scene.member("theirs", owner="other-uid", pool="other-pool")]
    assert names(sort_members(scene.pool(), sandboxes, frozenset()).owned) == ["mine"]


def test_a_member_in_order_needs_no_repair(scene: Scene) -> None:
    assert repair(scene.member("m"), scene.pool()) is None


def test_missing_labels_are_put_right(scene: Scene) -> None:
    member = scene.member("m", labels={LAUNCH_TYPE: None})
    seen = {"uid": "uid-m", "resourceVersion": "rv-m"}
    assert repair(member, scene.pool()) == Patch(SANDBOX, "m", {"metadata": {**seen, "labels": {LAUNCH_TYPE: "warm"}}})
    member = scene.member("m", labels={LAUNCH_TYPE: "cold", WARM_POOL: None})
    patch = repair(member, scene.pool())
    assert patch is not None
    assert patch.body == {"metadata": {**seen, "labels": {LAUNCH_TYPE: "warm", WARM_POOL: "59733166"}}}


def test_an_orphan_is_adopted_unless_somebody_is_faster(scene: Scene) -> None:
    orphan = scene.member("o", owner=None, labels={LAUNCH_TYPE: None})
    reference = {
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxWarmPool",
        "name": "test-pool",
        "uid": "pool-uid",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    seen = {"uid": "uid-o", "resourceVersion": "rv-o"}
    metadata = {**seen, "ownerReferences": [reference], "labels": {LAUNCH_TYPE: "warm"}}
    assert adoption(orphan, scene.pool()) == Patch(SANDBOX, "o", {"metadata": metadata})
    del metadata["labels"]
    assert adoption(scene.member("o", owner=None), scene.pool()).body == {"metadata": metadata}


def test_r12_a_sandbox_claimed_a_moment_ago_is_not_deleted(scene: Scene) -> None:
    # A claim changes the sandbox, so the API refuses a deletion of what it was before.
    assert deletion(scene.member("m")) == Delete(SANDBOX, "m", "uid-m", "rv-m")
