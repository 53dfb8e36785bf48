from __future__ import annotations

import pytest

from sandpool.kube.errors import Invalid
from sandpool.server.apply import managed_fields_causes, manager_from_user_agent, validate_manager


@pytest.mark.parametrize("name", ["", "kubectl", "a b", "é", "m" * 128])
def test_valid_manager_names_are_accepted(name: str) -> None:
    validate_manager(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("m" * 129, "Too long: may not be more than 128 bytes"),
        ("é" * 65, "Too long: may not be more than 128 bytes"),
        ("é\ax", 'Invalid value: "é\\ax": invalid character U+0007 (at position 2)'),
        ("a\u00a0", 'Invalid value: "a\\u00a0": invalid character U+00A0 (at position 1)'),
    ],
)
def test_invalid_manager_names_are_rejected(name: str, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        validate_manager(name, options="CreateOptions")
    assert refused.value.message == f'CreateOptions.meta.k8s.io "" is invalid: fieldManager: {message}'


def test_apply_requires_a_manager_name() -> None:
    with pytest.raises(Invalid) as refused:
        validate_manager("", applying=True)
    status = refused.value.status()
    message = "Required value: is required for apply patch"
    assert status["message"] == f'PatchOptions.meta.k8s.io "" is invalid: fieldManager: {message}'
    assert status["details"] == {
        "group": "meta.k8s.io",
        "kind": "PatchOptions",
        "causes": [{"reason": "FieldValueRequired", "message": message, "field": "fieldManager"}],
    }


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        ("kubectl/v1.36.3 (linux/amd64) kubernetes/abc", "kubectl"),
        ("python-requests", "python-requests"),
        ("", ""),
        ("a\x07b/1", "ab"),
        ("x" * 200, "x" * 128),
        ("é" * 100, "é" * 64),
    ],
)
def test_manager_name_defaults_to_the_user_agent(user_agent: str, name: str) -> None:
    assert manager_from_user_agent(user_agent) == name


def test_names_in_managed_fields_are_validated() -> None:
    entries = [{"manager": "ok"}, {"manager": "x" * 129, "subresource": "s" * 257}]
    assert [(cause.field, cause.reason) for cause in managed_fields_causes(entries)] == [
        ("metadata.managedFields[1].manager", "FieldValueTooLong"),
        ("metadata.managedFields[1].subresource", "FieldValueTooLong"),
    ]
    assert managed_fields_causes(None) == []
