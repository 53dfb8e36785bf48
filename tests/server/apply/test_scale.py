from __future__ import annotations

from sandpool.server.apply import scale_managed_fields, scaled_managed_fields
from sandpool.server.apply.fieldset import of
from sandpool.server.apply.managed_fields import APPLY, UPDATE, entry

T1, T2 = "2030-01-01T00:00:01Z", "2030-01-01T00:00:02Z"
REPLICAS = of(("f:spec", "f:replicas"))
COUNT = of(("f:spec", "f:count"))
OTHER = of(("f:spec", "f:other"))


def test_only_owners_of_replicas_own_the_scale() -> None:
    entries = [entry("a", APPLY, "v1", "", T1, COUNT | OTHER), entry("b", UPDATE, "v1", "", T1, OTHER)]
    assert scale_managed_fields(entries, ".spec.count") == [entry("a", APPLY, "autoscaling/v1", "", T1, REPLICAS)]


def test_new_owner_takes_replicas_from_the_others() -> None:
    entries = [entry("a", APPLY, "v1", "", T1, COUNT | OTHER), entry("b", UPDATE, "v1", "", T1, COUNT)]
    taken = [entry("c", UPDATE, "autoscaling/v1", "scale", T2, REPLICAS)]
    assert scaled_managed_fields(entries, taken, ".spec.count", "v1") == [
        entry("a", APPLY, "v1", "", T1, OTHER),
        entry("c", UPDATE, "v1", "scale", "", COUNT),
    ]


def test_owners_that_keep_replicas_are_unchanged() -> None:
    entries = [entry("a", APPLY, "v1", "", T1, COUNT | OTHER), entry("c", UPDATE, "v1", "scale", "", COUNT)]
    scale = scale_managed_fields(entries, ".spec.count")
    assert scaled_managed_fields(entries, scale, ".spec.count", "v1") == entries
