from __future__ import annotations

from copy import deepcopy

from sandpool.api.resource import Object
from sandpool.api.views import SandboxView
from sandpool.api.views.sharing import Shared
from tests.support import sandbox_objects


def test_equal_parts_are_kept_once() -> None:
    share = Shared[Object](2)
    first = share({"a": {"b": 1}})
    assert share({"a": {"b": 1}}) is first
    assert share({"a": {"b": 2}}) == {"a": {"b": 2}}


def test_the_oldest_is_forgotten_first() -> None:
    share = Shared[Object](2)
    first, second = share({"n": 1}), share({"n": 2})
    share({"n": 3})
    assert share({"n": 2}) is second
    again = share({"n": 1})
    assert again == first
    assert again is not first


def test_nothing_is_not_remembered() -> None:
    share = Shared[Object](1)
    kept = share({"n": 1})
    share({})
    assert share({"n": 1}) is kept


def test_members_of_a_pool_share_what_they_agree_in() -> None:
    condition = {"type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "t"}
    volumes = {"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}]}
    member = sandbox_objects.sandbox(
        "a", spec=volumes, metadata={"labels": {"pool": "p"}}, status={"conditions": [condition]}
    )
    one = SandboxView.from_object(member)
    other = SandboxView.from_object({**deepcopy(member), "metadata": {"name": "b", "labels": {"pool": "p"}}})
    assert one.pod_template is other.pod_template
    assert one.volume_claim_templates is other.volume_claim_templates
    assert one.labels is other.labels
    assert one.status.conditions[0] is other.status.conditions[0]
