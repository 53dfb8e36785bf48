from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sandpool.api.labels import SAFE_TO_EVICT
from sandpool.api.resource import Object
from sandpool.api.views import SandboxView, TemplateView
from sandpool.controllers.revision import TemplateRevision
from sandpool.controllers.sandbox.pod import new_pod
from sandpool.controllers.warmpool.creation import new_member
from sandpool.controllers.warmpool.members import repair, sort_members
from sandpool.controllers.warmpool.staleness import Staleness

if TYPE_CHECKING:
    from tests.controllers.warmpool.conftest import Scene


def test_the_whole_member(scene: Scene) -> None:
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
def test_edge_31_what_the_template_says_about_eviction_stands(
    scene: Scene, said: dict[str, str], enabled: bool, expected: str | None
) -> None:
    pod_template: Any = {"metadata": {"annotations": said}, "spec": {"containers": []}}
    template: Object = {"metadata": {"name": "t"}, "spec": {"podTemplate": pod_template}}
    revision = TemplateRevision.of(TemplateView.from_object(template))
    member = new_member(scene.pool(), revision, "m", enable_eviction=enabled)
    pod = new_pod(SandboxView.from_object(member))
    assert (pod["metadata"].get("annotations") or {}).get(SAFE_TO_EVICT) == expected


def test_a_new_member_is_one(scene: Scene) -> None:
    pool, revision = scene.pool(), scene.revision()
    member = SandboxView.from_object(new_member(pool, revision, "m", enable_eviction=True))
    assert sort_members(pool, [member], frozenset()).owned == (member,)
    assert not Staleness(revision).is_stale(member)
    assert repair(member, pool) is None
