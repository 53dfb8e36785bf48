"""Views of our own kinds, and of what sandboxes and templates own."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sandpool.api.views import (
    ClaimView,
    Lifecycle,
    NetworkPolicyView,
    SandboxStatus,
    SandboxView,
    ServiceView,
    TemplateView,
    WarmPoolStatus,
    WarmPoolView,
)

POD_TEMPLATE = {"spec": {"containers": [{"name": "main"}]}}
READY = {"type": "Ready", "status": "True", "reason": "DependenciesReady", "message": "", "lastTransitionTime": "t"}


def made(**parts: Any) -> dict[str, Any]:
    return {"metadata": {"name": "it"}, **parts}


def test_sandbox_view_has_all_fields() -> None:
    status = {
        "conditions": [READY],
        "nodeName": "node-1",
        "podIPs": ["10.0.0.1"],
        "selector": "a=b",
        "service": "it",
        "serviceFQDN": "it.ns.svc.cluster.local",
    }
    spec = {
        "podTemplate": POD_TEMPLATE,
        "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
        "service": True,
        "shutdownTime": "2026-01-02T03:04:05Z",
        "shutdownPolicy": "Delete",
        "operatingMode": "Suspended",
    }
    view = SandboxView.from_object(made(spec=spec, status=status))
    assert view.pod_template == POD_TEMPLATE
    assert view.volume_claim_templates == spec["volumeClaimTemplates"]
    assert view.service is True
    assert view.shutdown_time == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert view.deleted_on_expiry
    assert view.suspended
    assert view.ready
    assert view.status.reason("Ready") == "DependenciesReady"
    assert view.status.to_object() == status


def test_empty_sandbox_view_has_defaults() -> None:
    view = SandboxView.from_object(made())
    assert (view.service, view.shutdown_time, view.deleted_on_expiry, view.suspended) == (None, None, False, False)
    assert view.status == SandboxStatus()
    assert view.status.to_object() == {}
    assert (view.ready, view.status.condition("Ready"), view.status.reason("Ready")) == (False, None, "")


@pytest.mark.parametrize("mode", ["Running", "", "Hibernating"])
def test_any_other_mode_is_running(mode: str) -> None:
    assert not SandboxView.from_object(made(spec={"operatingMode": mode})).suspended


@pytest.mark.parametrize(("annotation", "name"), [(None, "it"), ("", "it"), ("other", "other")])
def test_pod_name_is_that_of_the_sandbox_or_of_the_annotation(annotation: str | None, name: str) -> None:
    annotations = {} if annotation is None else {"agents.x-k8s.io/pod-name": annotation}
    assert SandboxView.from_object({"metadata": {"name": "it", "annotations": annotations}}).pod_name == name


def test_claim_view_has_all_fields() -> None:
    spec = {
        "warmPoolRef": {"name": "pool"},
        "lifecycle": {"shutdownTime": "2026-01-02T03:04:05Z", "ttlSecondsAfterFinished": 0, "shutdownPolicy": "Retain"},
        "additionalPodMetadata": {"labels": {"a": "1"}, "annotations": {"b": "2"}},
        "env": [{"name": "A", "value": "1"}],
        "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
    }
    status = {"conditions": [READY], "sandbox": {"name": "box", "podIPs": ["10.0.0.1"]}}
    view = ClaimView.from_object(made(spec=spec, status=status))
    assert view.warm_pool == "pool"
    assert view.lifecycle == Lifecycle(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), 0, "Retain")
    assert (view.additional_labels, view.additional_annotations) == ({"a": "1"}, {"b": "2"})
    assert view.env is spec["env"]
    assert view.volume_claim_templates is spec["volumeClaimTemplates"]
    assert (view.sandbox_name, view.pod_ips, view.ready) == ("box", ("10.0.0.1",), True)
    assert view.condition("Ready") is READY
    assert view.reason("Ready") == "DependenciesReady"


def test_empty_claim_view_has_defaults() -> None:
    view = ClaimView.from_object(made(spec={"warmPoolRef": {"name": "pool"}, "lifecycle": {}}))
    assert view.lifecycle == Lifecycle(None, None, "")
    assert (view.sandbox_name, view.pod_ips, view.ready, view.reason("Ready")) == ("", (), False, "")
    assert ClaimView.from_object(made()).lifecycle is None


def test_template_view_has_all_fields() -> None:
    policy: dict[str, Any] = {"ingress": []}
    view = TemplateView.from_object(
        made(
            spec={
                "podTemplate": POD_TEMPLATE,
                "service": False,
                "networkPolicy": policy,
                "networkPolicyManagement": "Managed",
                "envVarsInjectionPolicy": "Allowed",
                "volumeClaimTemplatesPolicy": "Overrides",
            }
        )
    )
    assert view.pod_template is POD_TEMPLATE
    assert view.network_policy is policy
    assert (view.service, view.env_vars_injection_policy, view.volume_claim_templates_policy) == (
        False,
        "Allowed",
        "Overrides",
    )


@pytest.mark.parametrize(("management", "managed"), [(None, True), ("", True), ("Managed", True), ("Unmanaged", False)])
def test_network_is_managed_unless_unmanaged(management: str | None, managed: bool) -> None:
    view = TemplateView.from_object(made(spec={"networkPolicyManagement": management}))
    assert view.network_managed is managed


def test_pool_view_has_all_fields() -> None:
    spec = {
        "replicas": 0,
        "sandboxTemplateRef": {"name": "python"},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%", "maxSurge": 0}},
    }
    status = {
        "replicas": 4,
        "readyReplicas": 3,
        "updatedReplicas": 2,
        "updatedReadyReplicas": 1,
        "selector": "a=b",
        "observedGeneration": 5,
        "conditions": [READY],
    }
    view = WarmPoolView.from_object(made(spec=spec, status=status))
    assert (view.replicas, view.template, view.strategy) == (0, "python", "RollingUpdate")
    assert (view.max_unavailable, view.max_surge) == ("10%", 0)
    assert view.status == WarmPoolStatus(4, 3, 2, 1, "a=b", 5, [READY])


def test_pool_view_defaults_to_one_replica() -> None:
    view = WarmPoolView.from_object(made())
    assert (view.replicas, view.strategy, view.max_unavailable, view.max_surge) == (1, "", None, None)
    assert view.status == WarmPoolStatus()


def test_service_view_has_all_fields() -> None:
    spec = {"clusterIP": "None", "selector": {"a": "b"}, "ports": [{"port": 80}]}
    view = ServiceView.from_object(made(spec=spec))
    assert (view.cluster_ip, view.selector, view.ports) == ("None", {"a": "b"}, [{"port": 80}])
    bare = ServiceView.from_object(made())
    assert (bare.cluster_ip, bare.selector, bare.ports) == ("", {}, [])


def test_network_policy_view_has_the_spec() -> None:
    spec = {"policyTypes": ["Ingress"]}
    assert NetworkPolicyView.from_object(made(spec=spec)).spec is spec
