from __future__ import annotations

from copy import deepcopy

from sandpool.api.resource import Object
from sandpool.api.views import SandboxView, sandbox_view
from sandpool.api.views.sharing import PerPart, Shared
from tests.support import sandbox_objects


def test_equal_values_are_stored_once() -> None:
    share = Shared[Object](2)
    first = share({"a": {"b": 1}})
    assert share({"a": {"b": 1}}) is first
    assert share({"a": {"b": 2}}) == {"a": {"b": 2}}


def test_oldest_value_is_evicted_first() -> None:
    share = Shared[Object](2)
    first, second = share({"n": 1}), share({"n": 2})
    share({"n": 3})
    assert share({"n": 2}) is second
    again = share({"n": 1})
    assert again == first
    assert again is not first


def test_empty_value_is_not_stored() -> None:
    share = Shared[Object](1)
    kept = share({"n": 1})
    share({})
    assert share({"n": 1}) is kept


def test_pool_members_share_equal_values() -> None:
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


def test_view_of_one_object_is_made_once() -> None:
    box = sandbox_objects.sandbox("a")
    assert sandbox_view(box) is sandbox_view(box)
    assert sandbox_view(deepcopy(box)) == sandbox_view(box)


def test_result_for_a_part_is_remembered_while_it_is_recent() -> None:
    calls: list[str] = []

    def size(part: list[str]) -> int:
        calls.extend(part)
        return len(part)

    remember = PerPart(size, 2)
    parts = [["a"], ["b"], ["c"]]
    assert [remember(part) for part in (*parts, *parts[1:], parts[0])] == [1] * 6
    assert calls == ["a", "b", "c", "a"]
