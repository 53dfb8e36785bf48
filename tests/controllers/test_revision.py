"""Template revisions: hashing, semantic comparison, memoisation, and the Sandboxes built from them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandpool.api.kinds import SANDBOX_WARM_POOL
from sandpool.api.resource import Object
from sandpool.api.schema import core
from sandpool.api.views import SandboxView, TemplateView, WarmPoolView, controller_reference
from sandpool.controllers.informers import Caches
from sandpool.controllers.revision import (
    TemplateRevision,
    TemplateRevisions,
    content_hash,
    new_sandbox,
    secure_defaults,
    semantically_equal,
)
from tests.support.sandbox_objects import NAMESPACE, template

PUBLIC_DNS = {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["8.8.8.8", "1.1.1.1"]}}


def template_spec(image: str = "example.com/image:1", **fields: Any) -> Object:
    return {"podTemplate": {"spec": {"containers": [{"name": "main", "image": image}]}}, **fields}


def volume(name: str, size: str = "1Gi", **metadata: Any) -> Object:
    return {"metadata": {"name": name, **metadata}, "spec": {"resources": {"requests": {"storage": size}}}}


def template_view(spec: Object, name: str = "t") -> TemplateView:
    return TemplateView.from_object({"metadata": {"name": name}, "spec": spec})


def revision(name: str = "t", **fields: Any) -> TemplateRevision:
    return TemplateRevision.of(template_view(template_spec(**fields), name))


def made_of(revision: TemplateRevision, **spec: Any) -> SandboxView:
    return SandboxView.from_object({"metadata": {"name": "s"}, "spec": {**revision.spec, **spec}})


def made(**fields: Any) -> SandboxView:
    """A sandbox made from a template with these fields."""
    return made_of(revision(**fields))


def owner() -> Object:
    pool: Object = {"metadata": {"name": "pool", "uid": "uid-1"}}
    return controller_reference(SANDBOX_WARM_POOL, WarmPoolView.from_object(pool))


# --- secure defaults -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("management", [{}, {"networkPolicyManagement": "Managed"}, {"networkPolicyManagement": ""}])
def test_default_policy_gets_no_token_and_public_name_servers(management: Object) -> None:
    assert secure_defaults({}, template_view(management)) == {"automountServiceAccountToken": False, **PUBLIC_DNS}


@pytest.mark.parametrize(
    "fields", [{"networkPolicyManagement": "Unmanaged"}, {"networkPolicy": {}}, {"networkPolicy": {"egress": []}}]
)
def test_name_servers_are_unchanged_without_the_default_policy(fields: Object) -> None:
    assert secure_defaults({}, template_view(fields)) == {"automountServiceAccountToken": False}


def test_explicit_settings_win_over_secure_defaults() -> None:
    spec = {"automountServiceAccountToken": True, "dnsPolicy": "ClusterFirst"}
    assert secure_defaults(spec, template_view({})) is spec


def test_dns_config_without_dns_policy_is_replaced() -> None:
    assert secure_defaults({"dnsConfig": {"searches": ["a"]}, "dnsPolicy": ""}, template_view({})) == {
        "automountServiceAccountToken": False,
        **PUBLIC_DNS,
    }


def test_template_is_not_modified() -> None:
    spec = template_spec()
    TemplateRevision.of(template_view(spec))
    assert spec == template_spec()


# --- hashes ----------------------------------------------------------------------------------------------------------


def test_hash_is_the_same_in_every_process() -> None:
    assert content_hash({"a": [1, "x"], "b": None}) == "62fcbac8fb4918e5"
    assert revision("test-template").ref_hash == "69155462"


@given(st.dictionaries(st.text(), st.recursive(st.integers(-100, 100) | st.text(), st.lists, max_leaves=5)))
def test_key_order_does_not_change_the_hash(content: Object) -> None:
    assert content_hash(dict(reversed(content.items()))) == content_hash(content)


def test_hash_is_of_the_spec_as_written() -> None:
    before = revision()
    assert before.hash == content_hash(template_spec())
    assert before.pod_template_hash == content_hash(template_spec()["podTemplate"])
    assert revision("other").hash == before.hash
    assert revision(service=None).hash == before.hash


@pytest.mark.parametrize(
    ("fields", "changes"),
    [
        ({"service": True}, True),
        ({"volumeClaimTemplates": [volume("a")]}, True),
        ({"image": "example.com/image:2"}, True),
        ({"networkPolicyManagement": "Unmanaged"}, False),
        ({"networkPolicy": {}}, False),
        ({"envVarsInjectionPolicy": "Allowed"}, False),
        ({"volumeClaimTemplatesPolicy": "Allowed"}, False),
    ],
)
def test_only_fields_that_shape_the_sandbox_are_hashed(fields: Object, changes: bool) -> None:
    assert (revision(**fields).hash != revision().hash) is changes


# --- comparing (edge cases 24 and 25) --------------------------------------------------------------------------------


def test_sandbox_matches_its_template() -> None:
    plan = revision(volumeClaimTemplates=[volume("a")], service=True)
    assert plan.matches(made_of(plan, operatingMode="Running", shutdownPolicy="Retain"))


def test_edge_24_labels_and_annotations_do_not_make_a_sandbox_stale() -> None:
    metadata: Object = {"labels": {"a": "b"}, "annotations": {"c": "d"}}
    before = made(volumeClaimTemplates=[volume("a")])
    edited = template_spec(volumeClaimTemplates=[volume("a", **metadata)])
    edited["podTemplate"]["metadata"] = metadata
    after = TemplateRevision.of(template_view(edited))
    assert after.matches(before)
    assert after.hash != revision(volumeClaimTemplates=[volume("a")]).hash


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"image": "example.com/image:2"}),
        ({}, {"volumeClaimTemplates": [volume("a")]}),
        ({"volumeClaimTemplates": [volume("a")]}, {}),
        ({"volumeClaimTemplates": [volume("a")]}, {"volumeClaimTemplates": [volume("b")]}),
        ({"volumeClaimTemplates": [volume("a")]}, {"volumeClaimTemplates": [volume("a", "2Gi")]}),
        ({"volumeClaimTemplates": [volume("a"), volume("b")]}, {"volumeClaimTemplates": [volume("b"), volume("a")]}),
        ({}, {"service": True}),
        ({}, {"service": False}),
        ({"service": True}, {"service": False}),
    ],
)
def test_edge_24_changed_field_makes_a_sandbox_stale(before: Object, after: Object) -> None:
    assert not revision(**after).matches(made(**before))


def test_edge_24_equivalent_spellings_do_not_make_a_sandbox_stale() -> None:
    before = made(volumeClaimTemplates=[volume("a", "1024Mi")])
    assert revision(volumeClaimTemplates=[volume("a", "1Gi")]).matches(before)
    assert revision(volumeClaimTemplates=[]).matches(made())


def with_pod(**fields: Any) -> Object:
    return {"podTemplate": {"spec": {"containers": [{"name": "main"}], **fields}}}


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ({}, {"automountServiceAccountToken": False}, True),
        ({}, PUBLIC_DNS, True),
        ({"automountServiceAccountToken": False}, {"automountServiceAccountToken": True}, False),
        ({}, {"dnsPolicy": "ClusterFirst"}, False),
    ],
)
def test_edge_25_explicit_secure_defaults_do_not_make_a_sandbox_stale(
    before: Object, after: Object, is_same: bool
) -> None:
    assert (
        TemplateRevision.of(template_view(with_pod(**after))).matches(
            made_of(TemplateRevision.of(template_view(with_pod(**before))))
        )
        is is_same
    )


# --- building --------------------------------------------------------------------------------------------------------


def test_new_sandbox_has_all_fields() -> None:
    spec = template_spec(service=True)
    spec["podTemplate"]["metadata"] = {"labels": {"app": "x"}, "annotations": {"note": "y"}}
    sandbox = new_sandbox(
        TemplateRevision.of(template_view(spec, "test-template")),
        namespace="ns",
        name="s",
        owner=owner(),
        labels={"l": "1"},
        pod_labels={"p": "2"},
        annotations={"a": "3"},
    )
    assert sandbox == {
        "apiVersion": "agents.x-k8s.io/v1beta1",
        "kind": "Sandbox",
        "metadata": {
            "namespace": "ns",
            "name": "s",
            "labels": {"agents.x-k8s.io/sandbox-template-ref-hash": "69155462", "l": "1"},
            "annotations": {
                "agents.x-k8s.io/sandbox-template-ref": "test-template",
                "agents.x-k8s.io/pod-name": "s",
                "a": "3",
            },
            "ownerReferences": [
                {
                    "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
                    "kind": "SandboxWarmPool",
                    "name": "pool",
                    "uid": "uid-1",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "podTemplate": {
                "metadata": {
                    "labels": {"app": "x", "agents.x-k8s.io/sandbox-template-ref-hash": "69155462", "p": "2"},
                    "annotations": {"note": "y"},
                },
                "spec": {
                    "containers": [{"name": "main", "image": "example.com/image:1"}],
                    "automountServiceAccountToken": False,
                    **PUBLIC_DNS,
                },
            },
            "service": True,
        },
    }


def test_new_sandbox_uses_the_spec_of_the_claim() -> None:
    plan = revision()
    spec = {**plan.spec, "volumeClaimTemplates": [volume("mine")]}
    sandbox = new_sandbox(plan, namespace="ns", name="s", owner=owner(), labels={}, pod_labels={}, spec=spec)
    assert sandbox["spec"]["volumeClaimTemplates"] == [volume("mine")]


def version(number: int, generation: int = 1, **metadata: object) -> Object:
    return template(metadata={"resourceVersion": str(number), "generation": generation, **metadata})


@pytest.fixture
def caches() -> Caches:
    return Caches()


@pytest.fixture
def revisions(caches: Caches) -> TemplateRevisions:
    return TemplateRevisions(caches)


def test_missing_template_has_no_revision(revisions: TemplateRevisions) -> None:
    assert revisions.of(NAMESPACE, "python") is None


def test_revision_is_memoised_until_the_spec_changes(caches: Caches, revisions: TemplateRevisions) -> None:
    caches.templates.observe(version(1))
    made = revisions.of(NAMESPACE, "python")
    caches.templates.observe(version(2, labels={"color": "red"}))

    assert made is not None
    assert revisions.of(NAMESPACE, "python") is made


@pytest.mark.parametrize(
    "change", [{"generation": 2}, {"generation": 1, "uid": "another"}], ids=["changed", "replaced"]
)
def test_changed_template_gets_a_new_revision(
    caches: Caches, revisions: TemplateRevisions, change: dict[str, object]
) -> None:
    caches.templates.observe(version(1))
    made = revisions.of(NAMESPACE, "python")
    caches.templates.observe(template(metadata={"resourceVersion": "2", **change}))

    again = revisions.of(NAMESPACE, "python")
    assert again is not None and again is not made


def test_deleted_template_has_no_revision(caches: Caches, revisions: TemplateRevisions) -> None:
    caches.templates.observe(version(1))
    revisions.of(NAMESPACE, "python")
    caches.templates.observe_deletion(version(2))

    assert revisions.of(NAMESPACE, "python") is None


POD_SPEC = core.definition("io.k8s.api.core.v1.PodSpec")


def container(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "main", **fields}]}


def limits(amount: Any) -> dict[str, Any]:
    return container(resources={"limits": {"memory": amount}})


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({}, {"tolerations": []}),
        ({}, {"nodeSelector": {}}),
        ({}, {"dnsPolicy": ""}),
        ({}, {"hostNetwork": False}),
        ({}, {"securityContext": None}),
        (container(), container(resources={})),
        (container(), container(env=None, args=[])),
        (container(env=[{"name": "A"}]), container(env=[{"name": "A", "value": ""}])),
        (limits("1Gi"), limits("1024Mi")),
        (limits("1Gi"), limits("1073741824")),
        (limits("1"), limits(1)),
        (limits("0.5"), limits("500m")),
        ({"overhead": {"cpu": "1"}}, {"overhead": {"cpu": "1000m"}}),
        ({"somethingNew": {"a": 1}}, {"somethingNew": {"a": 1}}),
    ],
)
def test_equivalent_values_are_equal(left: Any, right: Any) -> None:
    assert semantically_equal(left, right, POD_SPEC)
    assert semantically_equal(right, left, POD_SPEC)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        # Go declares these as pointers: absent leaves the decision to the default.
        ({}, {"automountServiceAccountToken": False}),
        ({}, {"terminationGracePeriodSeconds": 0}),
        ({}, {"securityContext": {}}),
        ({"volumes": [{"name": "v"}]}, {"volumes": [{"name": "v", "emptyDir": {}}]}),
        ({"nodeSelector": {"size": "1Gi"}}, {"nodeSelector": {"size": "1024Mi"}}),
        ({"nodeSelector": {}}, {"nodeSelector": {"a": "b"}}),
        (container(args=["a", "b"]), container(args=["b", "a"])),
        (container(args=["a"]), container(args=["a", "a"])),
        (limits("1Gi"), limits("1G")),
        (limits("1Gi"), limits("much")),
        (limits({}), limits("1Gi")),
        (container(image="a"), container(image="b")),
        ({"hostNetwork": True}, {"hostNetwork": 1}),
        ({"somethingNew": {}}, {}),
    ],
)
def test_different_values_are_not_equal(left: Any, right: Any) -> None:
    assert not semantically_equal(left, right, POD_SPEC)
    assert not semantically_equal(right, left, POD_SPEC)
