"""additionalPodMetadata: what is allowed, in which words it is refused, and how it joins the template's."""

from __future__ import annotations

import pytest

from sandpool.api.labels import SAFE_TO_EVICT
from sandpool.controllers import options
from sandpool.controllers.claim import provisioning
from sandpool.controllers.claim.errors import ClaimError, Retry

DOMAINS = options.DEFAULT_LABEL_DOMAINS


def refusal(labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> str:
    with pytest.raises(ClaimError) as caught:
        provisioning.check_metadata(labels or {}, annotations or {}, DOMAINS)
    assert caught.value.reason == "InvalidMetadata"
    assert caught.value.retry is Retry.NEVER
    return caught.value.message


@pytest.mark.parametrize(
    "labels",
    [{}, {"sandbox.users.io/a": "b"}, {"team.sandbox.users.io/a": "b"}, {"sandbox.users.io/a": ""}],
)
def test_labels_of_allowed_domains_and_their_subdomains_are_allowed(labels: dict[str, str]) -> None:
    provisioning.check_metadata(labels, {}, DOMAINS)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            {"evil.example.com/hack": "x"},
            'failed to validate label "evil.example.com/hack": label domain "evil.example.com" is not in the allowlist',
        ),
        (
            {"notsandbox.users.io/a": "x"},
            'failed to validate label "notsandbox.users.io/a": label domain "notsandbox.users.io" is not in the '
            "allowlist",
        ),
        (
            {"team": "x"},
            'failed to validate label "team": label "team" must have a domain prefix (e.g. '
            "'sandbox.users.io/my-label') to prevent opting into unintended policy domains",
        ),
        (
            {"App": "Sandbox-Router"},
            'failed to validate label "App": restricted system label value: "App"="Sandbox-Router" is not allowed in '
            "AdditionalPodMetadata",
        ),
        (
            {"sandbox.users.io/": "x"},
            'failed to validate label "sandbox.users.io/": invalid label key: "sandbox.users.io/": name part must be '
            "non-empty; name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
            "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation "
            "is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
        ),
        (
            {"sandbox.users.io/a": "-"},
            'failed to validate label "sandbox.users.io/a": invalid label value: "-" does not match allowed pattern: a '
            "valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
            "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used "
            "for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
        ),
    ],
)
def test_labels_of_other_domains_are_rejected(labels: dict[str, str], message: str) -> None:
    assert refusal(labels) == f"invalid additionalPodMetadata: {message}"


@pytest.mark.parametrize("key", ["note", "example.com/note", "mykubernetes.io/x", SAFE_TO_EVICT])
def test_any_annotation_value_is_accepted(key: str) -> None:
    provisioning.check_metadata({}, {key: "anything at all"}, DOMAINS)


@pytest.mark.parametrize(
    "key",
    [
        "kubernetes.io/x",
        "seccomp.security.alpha.kubernetes.io/pod",
        "k8s.io/x",
        "agents.x-k8s.io/x",
        "foo.agents.x-k8s.io/x",
        "x.cluster-autoscaler.kubernetes.io/safe-to-evict",
    ],
)
def test_annotations_of_kubernetes_and_of_agent_sandbox_are_rejected(key: str) -> None:
    assert refusal(annotations={key: "x"}) == (
        f'invalid additionalPodMetadata: failed to validate annotation "{key}": restricted system domain: "{key}" is '
        "not allowed in AdditionalPodMetadata"
    )


def test_first_invalid_key_in_order_is_reported() -> None:
    assert '"b.example.com/x"' in refusal({"c.example.com/x": "", "b.example.com/x": ""})


@pytest.mark.parametrize(
    ("text", "domains"),
    [
        ("", ("sandbox.users.io",)),
        (" , \n", ("sandbox.users.io",)),
        ("Example.COM", ("example.com",)),
        ("a.io, b.io\r\nc.io\n", ("a.io", "b.io", "c.io")),
    ],
)
def test_domains_are_read_from_a_file(text: str, domains: tuple[str, ...]) -> None:
    assert provisioning.parse_label_domains(text) == domains


def test_e52_same_value_is_no_conflict() -> None:
    assert provisioning.merge_metadata({"a": "1"}, {"a": "1", "b": "2"}, "label") == {"a": "1", "b": "2"}


@pytest.mark.parametrize("what", ["label", "annotation"])
def test_e52_different_value_is_a_conflict(what: str) -> None:
    with pytest.raises(ClaimError) as caught:
        provisioning.merge_metadata({"a": "1"}, {"a": "2"}, what)
    assert caught.value.reason == "ReconcilerError"
    assert caught.value.retry is Retry.BACKOFF
    assert caught.value.message == (
        f'Error seen: metadata override conflict: {what} "a" is defined in template with value "1", but claim requests '
        '"2"'
    )
