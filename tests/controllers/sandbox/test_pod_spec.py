"""The spec of a sandbox's pod."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.resource import Object
from sandpool.api.views import SandboxView
from sandpool.controllers.sandbox.pod import pod_spec
from sandpool.testing.objects import pod_template
from tests.support.sandbox_objects import sandbox

_ODD = {"limits": {"cpu": "1"}, "requests": "few"}
FALLBACK = {"terminationMessagePolicy": "FallbackToLogsOnError"}


def spec_of(*containers: Object, small_requests: bool = False, **spec: Any) -> Object:
    template = pod_template(spec={"containers": list(containers), **spec})
    return pod_spec(
        SandboxView.from_object(sandbox("box", spec={"podTemplate": template})), small_requests=small_requests
    )


def requests_of(resources: Any) -> Any:
    (container,) = spec_of({"name": "main", "resources": resources}, small_requests=True)["containers"]
    return container["resources"]


def test_containers_that_fail_show_their_last_output() -> None:
    main, init = {"name": "main", "image": "i"}, {"name": "init", "image": "i"}
    spec = spec_of(main, initContainers=[init], restartPolicy="Never")
    assert spec == {
        "containers": [{**main, **FALLBACK}],
        "initContainers": [{**init, **FALLBACK}],
        "restartPolicy": "Never",
    }


def test_message_policy_of_the_template_is_kept() -> None:
    main = {"name": "main", "terminationMessagePolicy": "File"}
    assert spec_of(main)["containers"] == [main]


def test_limits_are_the_requests_as_on_kubernetes_unless_the_option_is_set() -> None:
    resources = {"limits": {"cpu": "2"}}
    (container,) = spec_of({"name": "main", "resources": resources})["containers"]
    assert container["resources"] == resources


def test_limits_without_requests_get_small_requests() -> None:
    limits = {"cpu": "2", "memory": "16Mi", "ephemeral-storage": "1Gi", "example.com/gpu": "1"}
    assert requests_of({"limits": limits}) == {
        "limits": limits,
        "requests": {"cpu": "10m", "memory": "16Mi", "ephemeral-storage": "64Mi"},
    }


def test_requests_of_the_template_are_kept() -> None:
    both = {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}
    assert requests_of(both) == {**both, "requests": {"cpu": "1", "memory": "32Mi"}}
    assert requests_of({"requests": {"cpu": "1"}}) == {"requests": {"cpu": "1"}}


@pytest.mark.parametrize(
    "resources", [None, "much", {}, {"limits": None}, {"limits": {"cpu": "lots", "memory": [1]}}, _ODD]
)
def test_resources_that_the_api_refuses_are_passed_on(resources: Any) -> None:
    assert requests_of(resources) == resources


@pytest.mark.parametrize("containers", ["main", ["main"], None])
def test_containers_that_the_api_refuses_are_passed_on(containers: Any) -> None:
    template = pod_template(spec={"containers": containers})
    assert pod_spec(SandboxView.from_object(sandbox("box", spec={"podTemplate": template})))["containers"] == containers


def test_pods_of_one_template_share_their_spec() -> None:
    """The embedded API defaults and validates a spec once per object, and a pool may have many pods."""
    one, other = (SandboxView.from_object(sandbox(name, spec={"podTemplate": pod_template()})) for name in ("a", "b"))
    assert pod_spec(one) is pod_spec(other)


def test_edge_20_claimed_volumes_replace_those_of_the_same_name_and_come_last() -> None:
    volumes = [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    claims = [{"metadata": {"name": name}, "spec": {}} for name in ("data", "log")]
    template = pod_template(spec={"volumes": volumes})
    claiming = sandbox("box", spec={"podTemplate": template, "volumeClaimTemplates": claims})
    assert pod_spec(SandboxView.from_object(claiming))["volumes"] == [
        {"name": "tmp", "emptyDir": {}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data-box"}},
        {"name": "log", "persistentVolumeClaim": {"claimName": "log-box"}},
    ]
    assert len(volumes) == 2
