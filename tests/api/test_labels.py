from __future__ import annotations

from sandpool.api import labels


def test_template_authors_cannot_set_reserved_keys() -> None:
    assert labels.is_reserved_label(labels.CLAIM_UID)
    assert labels.is_reserved_label("extensions.agents.x-k8s.io/anything")
    assert not labels.is_reserved_label("agents.x-k8s.io")
    assert not labels.is_reserved_label(labels.TRACE_CONTEXT)
    assert labels.is_reserved_annotation(labels.TRACE_CONTEXT)
    assert labels.is_reserved_annotation(labels.POD_NAME)
    assert not labels.is_reserved_annotation(labels.SAFE_TO_EVICT)


def test_only_known_creators_are_named() -> None:
    assert [labels.normal_creator(each) for each in ("go-client", "python-client", "controller", "me", "")] == [
        "go-client",
        "python-client",
        "controller",
        "unknown",
        "unknown",
    ]


def test_label_keys_are_those_of_the_go_implementation() -> None:
    ours = {value for name, value in vars(labels).items() if name.isupper() and "/" in value}
    prefix = "agents.x-k8s.io/"
    assert {key.removeprefix(prefix) for key in ours if key.startswith(prefix)} == {
        "sandbox-name-hash",
        "warm-pool-sandbox",
        "sandbox-template-ref-hash",
        "sandbox-template-hash",
        "sandbox-pod-template-hash",
        "launch-type",
        "created-by",
        "claim-uid",
        "adoptable",
        "pod-name",
        "sandbox-template-ref",
        "propagated-labels",
        "propagated-annotations",
        "sandbox-name",
        "controller-first-observed-at",
        "webhook-first-observed-at",
        "client-first-requested-at",
        "claim-first-ready-at",
    }
