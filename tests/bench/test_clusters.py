"""Requests are attributed to their writers on any cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from sandpool.bench.accounting import CLIENT, CONTROLLERS, NODES, OTHERS, is_about
from sandpool.bench.clusters import asked_of_cluster, on_cluster, writer_for
from sandpool.explain.audit import AuditedRequest
from sandpool.install.errors import InstallError
from sandpool.kube.client import Client
from sandpool.kube.errors import NotFound
from sandpool.kube.transport import Request, WatchEvent


@pytest.mark.parametrize(
    ("user", "agent", "expected"),
    [
        ("me", "sandpool/1", CLIENT),
        ("system:node:worker-1", "kubelet/v1.36", NODES),
        ("system:kube-scheduler", "kube-scheduler/v1.36", NODES),
        ("system:serviceaccount:agent-sandbox-system:agent-sandbox-controller", "manager/v0", CONTROLLERS),
        ("system:serviceaccount:kube-system:generic-garbage-collector", "kube-controller-manager/v1.36", OTHERS),
        ("system:kube-controller-manager", "kube-controller-manager/v1.36", OTHERS),
        ("system:apiserver", "kube-apiserver/v1.36", OTHERS),
        ("admin", "kube-controller-manager/v1.36", OTHERS),
    ],
)
def test_request_is_attributed_to_its_writer(user: str, agent: str, expected: str) -> None:
    assert writer_for("me")(AuditedRequest(user, "patch", "pods", "", "ns", "", 200, agent)) == expected


@pytest.mark.parametrize(
    ("verb", "subresource", "expected"),
    [
        ("patch", "status", NODES),
        ("create", "binding", NODES),
        ("patch", "", CONTROLLERS),
        ("get", "status", CONTROLLERS),
    ],
)
def test_pod_binding_and_status_are_attributed_to_the_node(verb: str, subresource: str, expected: str) -> None:
    assert writer_for("me")(AuditedRequest("any-user", verb, "pods", subresource, "ns", "", 200, "any/1")) == expected


@pytest.mark.parametrize(
    ("namespace", "resource", "expected"),
    [("ns", "configmaps", True), ("", "sandboxes", True), ("", "nodes", False), ("other", "sandboxes", False)],
)
def test_requests_of_the_run_are_selected_by_namespace(namespace: str, resource: str, expected: bool) -> None:
    assert is_about(AuditedRequest("me", "list", resource, "", namespace, "", 200, ""), "ns") is expected


def line(**fields: Any) -> dict[str, Any]:
    about = {"resource": "pods", "namespace": "ns", "name": "one"}
    return {"user": {"username": "me"}, "verb": "patch", "objectRef": about, "userAgent": "a", **fields}


def test_request_logged_in_stages_is_counted_once() -> None:
    whole = line(stage="ResponseComplete", responseStatus={"code": 200})
    stages = [line(stage="RequestReceived"), line(stage="ResponseStarted", responseStatus={"code": 200}), whole]
    about = [asked for asked in map(asked_of_cluster, stages) if is_about(asked, "ns")]
    assert about == [AuditedRequest("me", "patch", "pods", "", "ns", "one", 200, "a")]


def test_log_of_the_embedded_api_is_understood() -> None:
    told = {"user": "me", "verb": "get", "resource": "pods", "namespace": "ns", "name": "one", "code": 404}
    assert asked_of_cluster(told) == AuditedRequest("me", "get", "pods", "", "ns", "one", 404, "")


class Bare:
    """The API of a cluster in which nothing is installed."""

    async def request(self, request: Request) -> Any:
        raise NotFound("the server could not find the requested resource")

    def stream(self, request: Request) -> AsyncIterator[WatchEvent]:
        raise NotFound("the server could not find the requested resource")

    async def close(self) -> None: ...


async def test_cluster_without_the_kinds_is_reported() -> None:
    with pytest.raises(InstallError, match="install a controller first"):
        async with on_cluster(Client(Bare())):
            pass
