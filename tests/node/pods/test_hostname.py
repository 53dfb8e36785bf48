"""Hostnames, /etc/hosts and /etc/resolv.conf."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.resource import Object
from sandpool.node.pods.hostname import hostname, hosts_file, own_name, resolv_conf
from sandpool.testing.objects import pod

HOST = "# made by hand\nsearch example.com\nnameserver 192.0.2.53\noptions edns0\n"


def given(name: str = "pod", **spec: Any) -> Object:
    return pod(name, spec=spec, metadata={"namespace": "space"})


@pytest.mark.parametrize(
    ("name", "spec", "expected"),
    [
        ("pod", {}, "pod"),
        ("pod", {"hostname": "box"}, "box"),
        ("a" * 70, {}, "a" * 63),
        ("a" * 62 + "-b", {}, "a" * 62),
    ],
)
def test_hostname_follows_name_and_spec(name: str, spec: Object, expected: str) -> None:
    assert hostname(given(name, **spec)) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"subdomain": "boxes"}, "pod"),
        ({"subdomain": "boxes", "setHostnameAsFQDN": True}, "pod.boxes.space.svc.cluster.local"),
        ({"setHostnameAsFQDN": True}, "pod"),
    ],
)
def test_fqdn_is_the_hostname_if_requested(spec: Object, expected: str) -> None:
    assert own_name(given(**spec), "cluster.local") == expected


def test_hosts_file_has_pod_and_aliases() -> None:
    aliases = [{"ip": "192.0.2.7", "hostnames": ["db", "db.example.com"]}]
    text = hosts_file(given(hostAliases=aliases), ["10.1.0.1"], "cluster.local")
    assert text.startswith("127.0.0.1\tlocalhost\n")
    assert text.endswith("10.1.0.1\tpod\n192.0.2.7\tdb\tdb.example.com\n")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            {},
            "search space.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n",
        ),
        ({"dnsPolicy": "Default"}, "search example.com\nnameserver 192.0.2.53\noptions edns0\n"),
        ({"dnsPolicy": "None"}, ""),
        (
            {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.1"], "searches": ["a.b"]}},
            "search a.b\nnameserver 192.0.2.1\n",
        ),
        (
            {"dnsConfig": {"searches": ["more"], "options": [{"name": "ndots", "value": "2"}, {"name": "rotate"}]}},
            "search space.svc.cluster.local svc.cluster.local cluster.local more\n"
            "nameserver 10.96.0.10\noptions ndots:2 rotate\n",
        ),
    ],
)
def test_resolv_conf_follows_the_dns_policy(spec: Object, expected: str) -> None:
    assert resolv_conf(given(**spec), ["10.96.0.10"], "cluster.local", HOST) == expected


def test_host_nameservers_are_used_without_cluster_dns() -> None:
    assert resolv_conf(given(), [], "cluster.local", HOST) == resolv_conf(
        given(dnsPolicy="Default"), [], "cluster.local", HOST
    )
