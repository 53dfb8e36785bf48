"""What a new template is as an API object."""

from __future__ import annotations

from sandpool.api.labels import FREEZE_WHILE_WARM, IDLE_FREEZE_AFTER, IDLE_SUSPEND_AFTER, LATE_BINDING
from sandpool.service.templates import NewTemplate


def test_template_that_says_nothing_of_sleep_has_no_annotations() -> None:
    assert "metadata" not in NewTemplate("image").document("name")["spec"]["podTemplate"]


def test_times_of_sleep_are_annotations_of_the_pod_template() -> None:
    template = NewTemplate("image", freeze=True, freeze_after="5m", suspend_after="2h").document("name")
    assert template["spec"]["podTemplate"]["metadata"]["annotations"] == {
        FREEZE_WHILE_WARM: "true",
        IDLE_FREEZE_AFTER: "5m",
        IDLE_SUSPEND_AFTER: "2h",
    }


def test_late_binding_is_allowed_by_the_template_and_its_policy() -> None:
    document = NewTemplate("image", late_binding=True).document("name")
    assert document["metadata"] == {"name": "name", "annotations": {LATE_BINDING: "true"}}
    assert document["spec"]["envVarsInjectionPolicy"] == "Allowed"
