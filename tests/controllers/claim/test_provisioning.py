"""The Sandbox made for a claim."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api import labels
from sandpool.api.resource import Object
from sandpool.api.views import ClaimView, TemplateView
from sandpool.controllers.claim.errors import ClaimError
from sandpool.controllers.claim.provisioning import sandbox_for
from sandpool.controllers.revision import TemplateRevision
from sandpool.testing.objects import IMAGE, pod_template
from tests.support.claim_objects import claim
from tests.support.sandbox_objects import template


def made(claimed: Object | None = None, spec: Object | None = None, **options: str) -> Object:
    from_template = TemplateView.from_object(template(spec=spec))
    view = ClaimView.from_object(claimed or claim())
    return sandbox_for(view, from_template, TemplateRevision.of(from_template), **options)


def volume(name: str) -> Object:
    return {"metadata": {"name": name}, "spec": {}}


def test_cold_sandbox_has_all_fields() -> None:
    ref_hash = TemplateRevision.of(TemplateView.from_object(template())).ref_hash
    created_by = {labels.CREATED_BY: "my-tool"}
    assert made(claim(metadata={"labels": created_by})) == {
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "Sandbox",
        "metadata": {
            "namespace": "default",
            "name": "claim",
            "labels": {
                labels.CLAIM_UID: "sandboxclaim-claim",
                labels.LAUNCH_TYPE: "cold",
                labels.TEMPLATE_REF_HASH: ref_hash,
                **created_by,
            },
            "annotations": {labels.TEMPLATE_REF: "python", labels.POD_NAME: "claim"},
            "ownerReferences": [
                {
                    "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
                    "kind": "SandboxClaim",
                    "name": "claim",
                    "uid": "sandboxclaim-claim",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "podTemplate": {
                "metadata": {
                    "labels": {
                        labels.CLAIM_UID: "sandboxclaim-claim",
                        labels.TEMPLATE_REF_HASH: ref_hash,
                        **created_by,
                    }
                },
                "spec": {
                    "containers": [{"name": "main", "image": IMAGE}],
                    "automountServiceAccountToken": False,
                    "dnsPolicy": "None",
                    "dnsConfig": {"nameservers": ["8.8.8.8", "1.1.1.1"]},
                },
            }
        },
    }


def test_sandbox_of_a_claim_without_creator_has_no_creator_label() -> None:
    box = made()
    assert labels.CREATED_BY not in box["metadata"]["labels"]
    assert labels.CREATED_BY not in box["spec"]["podTemplate"]["metadata"]["labels"]


def test_trace_context_is_annotated() -> None:
    assert made(trace_context="{}")["metadata"]["annotations"][labels.TRACE_CONTEXT] == "{}"


def test_pod_metadata_of_template_and_claim_are_merged() -> None:
    additional = {"labels": {"sandbox.users.io/a": "b"}, "annotations": {"note": "claim"}}
    box = made(
        claim(spec={"additionalPodMetadata": additional}),
        {"podTemplate": pod_template(labels={"app": "x"}, annotations={"other": "template"})},
    )
    pod_metadata = box["spec"]["podTemplate"]["metadata"]
    assert pod_metadata["annotations"] == {"note": "claim", "other": "template"}
    assert pod_metadata["labels"].items() >= {("app", "x"), ("sandbox.users.io/a", "b")}


def test_env_and_volumes_of_the_claim_are_added() -> None:
    box = made(
        claim(spec={"env": [{"name": "A", "value": "1"}], "volumeClaimTemplates": [volume("b")]}),
        {
            "volumeClaimTemplates": [volume("a")],
            "volumeClaimTemplatesPolicy": "Allowed",
            "envVarsInjectionPolicy": "Allowed",
        },
    )
    assert box["spec"]["podTemplate"]["spec"]["containers"][0]["env"] == [{"name": "A", "value": "1"}]
    assert box["spec"]["volumeClaimTemplates"] == [volume("a"), volume("b")]


@pytest.mark.parametrize("service", [None, True, False])
def test_service_follows_the_template(service: bool | None) -> None:
    spec = {} if service is None else {"service": service}
    assert made(spec=spec)["spec"].get("service") is service


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"env": [{"name": "A", "value": "1"}]}, "EnvVarsInjectionRejected"),
        ({"volumeClaimTemplates": [volume("a")]}, "VolumeClaimTemplatesError"),
        ({"additionalPodMetadata": {"labels": {"app": "mine"}}}, "ReconcilerError"),
    ],
)
def test_what_the_template_disallows_is_rejected(spec: Any, reason: str) -> None:
    with pytest.raises(ClaimError) as caught:
        made(claim(spec=spec), {"podTemplate": pod_template(labels={"app": "template"})})
    assert caught.value.reason == reason
