from __future__ import annotations

import subprocess
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from sandpool.node.network.netns import NetworkNamespace
from sandpool.node.network.pod_cidr import CANDIDATES, NoPodCidrAvailable, check_pod_cidr, choose_pod_cidr

pytestmark = pytest.mark.isolation


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, env={"PATH": "/usr/bin:/usr/sbin:/bin:/sbin"})


@pytest.fixture
def host(tmp_path: Path) -> Iterator[NetworkNamespace]:
    namespace, _ = NetworkNamespace.make(tmp_path / "host", lambda: ip("link", "set", "lo", "up"))
    yield namespace
    namespace.remove()


def test_first_free_range_is_chosen(tmp_path: Path, host: NetworkNamespace) -> None:
    host.call(lambda: ip("route", "add", "10.231.7.0/24", "dev", "lo"))
    host.call(lambda: ip("route", "add", "default", "dev", "lo"))
    assert choose_pod_cidr(tmp_path / "node", host.path) == CANDIDATES[1]


def test_chosen_range_is_kept(tmp_path: Path, host: NetworkNamespace) -> None:
    assert choose_pod_cidr(tmp_path / "node", host.path) == CANDIDATES[0]
    host.call(lambda: ip("route", "add", str(CANDIDATES[0]), "dev", "lo"))
    assert choose_pod_cidr(tmp_path / "node", host.path) == CANDIDATES[0], "the route is our own"
    assert choose_pod_cidr(tmp_path / "other", host.path) == CANDIDATES[1]


def test_range_in_use_is_rejected(host: NetworkNamespace) -> None:
    wanted = IPv4Network("10.50.0.0/16")
    host.call(lambda: ip("route", "add", "10.0.0.0/8", "dev", "lo"))
    check_pod_cidr(wanted, host.path, "sandpool-1")
    host.call(lambda: ip("route", "add", "10.50.7.0/24", "dev", "lo"))
    with pytest.raises(
        NoPodCidrAvailable, match=r"reaches 10\.50\.7\.0/24 through lo; choose another range than 10\.50\.0\.0/16"
    ):
        check_pod_cidr(wanted, host.path, "sandpool-1")
    check_pod_cidr(wanted, host.path, "lo")


def test_exhausted_ranges_are_reported_with_advice(tmp_path: Path, host: NetworkNamespace) -> None:
    host.call(lambda: ip("route", "add", "10.0.0.0/8", "dev", "lo"))
    with pytest.raises(NoPodCidrAvailable, match="choose a range with --pod-cidr"):
        choose_pod_cidr(tmp_path / "node", host.path)
