from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.schema import core
from sandpool.controllers.semantic import same

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
def test_the_same(left: Any, right: Any) -> None:
    assert same(left, right, POD_SPEC)
    assert same(right, left, POD_SPEC)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        # Go declares these as pointers: absent leaves the decision to somebody else.
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
def test_different(left: Any, right: Any) -> None:
    assert not same(left, right, POD_SPEC)
    assert not same(right, left, POD_SPEC)
