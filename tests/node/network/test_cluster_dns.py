from __future__ import annotations

import pytest

from sandpool.node.network.cluster_dns import DnsPod, DnsService, OutsideClusterDomain, resolve

PODS = (
    DnsPod("default", "one", "10.0.0.1", {"app": "box"}, ready=True, hostname="one", subdomain="box"),
    DnsPod("default", "two", "10.0.0.2", {"app": "box"}, ready=False),
    DnsPod("other", "three", "10.0.0.3", {"app": "box"}, ready=True),
)
SERVICES = {
    (service.namespace, service.name): service
    for service in (
        DnsService("default", "box", {"app": "box"}),
        DnsService("default", "all", {"app": "box"}, publishes_not_ready=True),
        DnsService("default", "none", {}),
    )
}


def find(namespace: str, name: str) -> DnsService | None:
    return SERVICES.get((namespace, name))


@pytest.mark.parametrize(
    ("name", "addresses"),
    [
        ("box.default.svc.cluster.local.", ["10.0.0.1"]),
        ("BOX.Default.svc.cluster.local", ["10.0.0.1"]),
        ("all.default.svc.cluster.local", ["10.0.0.1", "10.0.0.2"]),
        ("none.default.svc.cluster.local", []),
        ("one.box.default.svc.cluster.local", ["10.0.0.1"]),
        ("10-0-0-1.box.default.svc.cluster.local", ["10.0.0.1"]),
        ("10-0-0-3.other.pod.cluster.local", ["10.0.0.3"]),
        ("10-0-0-3.default.pod.cluster.local", None),
        ("two.box.default.svc.cluster.local", None),
        ("box.other.svc.cluster.local", None),
        ("cluster.local", None),
        ("a.b.c.d.cluster.local", None),
    ],
)
def test_cluster_name_resolves(name: str, addresses: list[str] | None) -> None:
    assert resolve(name, find, PODS) == addresses


@pytest.mark.parametrize("name", ["example.com.", "notcluster.local", "."])
def test_other_names_are_outside_the_cluster_domain(name: str) -> None:
    with pytest.raises(OutsideClusterDomain):
        resolve(name, find, PODS)
