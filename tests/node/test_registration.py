"""The Node object: capacity, labels and conditions."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandpool.api.conditions import find_condition
from sandpool.api.labels import KUBELET_CERTIFICATE, UNAVAILABLE_RUNTIMES
from sandpool.api.resource import Object
from sandpool.node.machine import Machine, Remaining, read_machine, read_remaining
from sandpool.node.registration import (
    KubeletEndpoint,
    NodeCapabilities,
    RegistrationOptions,
    allocatable,
    capacity,
    conditions,
    new_node,
    node_metadata,
    node_status,
    stopped,
)
from sandpool.node.runtimes.handlers import with_unsupported

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MACHINE = Machine("here", 4, 8 << 30, 100 << 30, "amd64", "6.1", "Debian", "m", "b")
OFFER = RegistrationOptions("node-1", pods=50, reserved_cpu=0.5, reserved_memory=1 << 30, labels={"zone": "a"})
ABILITY = NodeCapabilities(("bwrap",), {}, {}, ("192.0.2.1",))
PLENTY = Remaining(4 << 30, 50 << 30, 20_000)


def statuses(ability: NodeCapabilities = ABILITY, remaining: Remaining = PLENTY) -> dict[str, str]:
    return {each["type"]: each["status"] for each in conditions(MACHINE, ability, remaining)}


def test_capacity_and_allocatable_are_reported() -> None:
    assert capacity(MACHINE, OFFER) == {"cpu": "4", "memory": "8Gi", "ephemeral-storage": "100Gi", "pods": "50"}
    left = {"cpu": "3500m", "memory": "7Gi", "ephemeral-storage": "90Gi", "pods": "50"}
    assert allocatable(MACHINE, OFFER) == left


def test_node_has_its_labels() -> None:
    assert new_node(MACHINE, OFFER, ABILITY)["metadata"]["labels"] == {
        "kubernetes.io/hostname": "node-1",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "runtime.sandpool.dev/bwrap": "true",
        "zone": "a",
    }


def test_lost_runtimes_are_removed_from_labels() -> None:
    ability = replace(ABILITY, unavailable={"crun": "it is too old"})
    new = new_node(MACHINE, OFFER, ability)["metadata"]
    assert "runtime.sandpool.dev/crun" not in new["labels"]
    assert json.loads(new["annotations"][UNAVAILABLE_RUNTIMES]) == {"crun": "it is too old"}
    assert node_metadata(MACHINE, OFFER, ability)["labels"]["runtime.sandpool.dev/crun"] is None
    assert node_metadata(MACHINE, OFFER, ABILITY)["annotations"] == {
        UNAVAILABLE_RUNTIMES: None,
        KUBELET_CERTIFICATE: None,
    }


def test_healthy_node_has_only_ready() -> None:
    assert statuses() == {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False", "Ready": "True"}


@pytest.mark.parametrize(
    ("remaining", "type"),
    [
        (replace(PLENTY, memory=50 << 20), "MemoryPressure"),
        (replace(PLENTY, storage=9 << 30), "DiskPressure"),
        (replace(PLENTY, pids=500), "PIDPressure"),
    ],
)
def test_pressure_is_a_condition(remaining: Remaining, type: str) -> None:
    assert [name for name, status in statuses(remaining=remaining).items() if status == "True"] == [type, "Ready"]


def test_weaknesses_are_conditions() -> None:
    ability = replace(ABILITY, unavailable={"gvisor": "not installed"}, weaknesses={"NoNetwork": "not root"})
    found = {each["type"]: each for each in conditions(MACHINE, ability, PLENTY)}
    assert (found["NoNetwork"]["status"], found["NoNetwork"]["message"]) == ("True", "not root")
    assert found["RuntimesUnavailable"]["message"] == "gvisor: not installed"
    assert found["Ready"]["status"] == "True"


def test_unsupported_runtimes_are_no_condition() -> None:
    unavailable = with_unsupported({"bwrap": object()}, {})
    assert "RuntimesUnavailable" not in statuses(replace(ABILITY, unavailable=unavailable))
    unavailable = with_unsupported({"bwrap": object()}, {"gvisor": "not installed", "process": "it failed"})
    found = {each["type"]: each for each in conditions(MACHINE, replace(ABILITY, unavailable=unavailable), PLENTY)}
    assert found["RuntimesUnavailable"]["message"] == "gvisor: not installed; process: it failed"
    assert unavailable["runsc"] == "not installed"


def test_outdated_conditions_are_withdrawn() -> None:
    weak = replace(ABILITY, unavailable={"gvisor": "not installed"}, weaknesses={"NoNetwork": "not root"})
    before = node_status(MACHINE, OFFER, weak, PLENTY, [], NOW)["conditions"]
    others = {"type": "NetworkUnavailable", "status": "False", "reason": "RouteCreated"}
    now = node_status(MACHINE, OFFER, ABILITY, PLENTY, [*before, others], NOW)["conditions"]
    assert [each for each in now if "$patch" in each] == [
        {"$patch": "delete", "type": "NoNetwork"},
        {"$patch": "delete", "type": "RuntimesUnavailable"},
    ]


def test_node_without_a_runtime_is_not_ready() -> None:
    ability = replace(ABILITY, handlers=(), unavailable={"bwrap": "not root"})
    ready = find_condition(conditions(MACHINE, ability, PLENTY), "Ready")
    assert ready is not None
    assert (ready["status"], ready["reason"], ready["message"]) == ("False", "NoRuntime", "bwrap: not root")


def test_unchanged_condition_keeps_its_transition_time() -> None:
    known: list[Object] = [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2025-01-01T00:00:00Z"},
        {"type": "DiskPressure", "status": "True", "lastTransitionTime": "2025-01-01T00:00:00Z"},
    ]
    status = node_status(MACHINE, OFFER, ABILITY, PLENTY, known, NOW)
    since = {each["type"]: each["lastTransitionTime"] for each in status["conditions"]}
    assert (since["Ready"], since["DiskPressure"]) == ("2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z")
    assert all(each["lastHeartbeatTime"] == "2026-01-01T00:00:00Z" for each in status["conditions"])
    (ready,) = stopped(known, NOW)["conditions"]
    assert (ready["status"], ready["lastTransitionTime"]) == ("False", "2026-01-01T00:00:00Z")


def test_addresses_and_runtimes_are_reported() -> None:
    status = node_status(MACHINE, OFFER, ABILITY, PLENTY, [], NOW)
    assert status["addresses"] == [
        {"type": "InternalIP", "address": "192.0.2.1"},
        {"type": "Hostname", "address": "here"},
    ]
    assert status["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 0}}
    assert status["runtimeHandlers"] == [{"name": "bwrap"}]
    assert status["nodeInfo"]["kernelVersion"] == "6.1"


def test_kubelet_endpoint_is_reported() -> None:
    ability = replace(ABILITY, endpoint=KubeletEndpoint("192.0.2.7", 10250, "12ab"))
    status = node_status(MACHINE, OFFER, ability, PLENTY, [], NOW)
    assert status["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10250}}
    addresses = [each["address"] for each in status["addresses"] if each["type"] == "InternalIP"]
    assert addresses == ["192.0.2.7"], "one, for a patch cannot have two of a type"
    assert new_node(MACHINE, OFFER, ability)["metadata"]["annotations"][KUBELET_CERTIFICATE] == "12ab"


def test_machine_is_read(tmp_path: Path) -> None:
    machine, remaining = read_machine(tmp_path), read_remaining(tmp_path)
    assert machine.cpus >= 1
    assert 0 < remaining.memory <= machine.memory
    assert 0 < remaining.storage <= machine.storage
    assert remaining.pids > 0


def test_machine_is_read_without_optional_files(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:       1024 kB\nHugePages_Total:       3\n")
    machine = read_machine(tmp_path, root=tmp_path)
    assert (machine.memory, machine.os_image, machine.boot_id) == (1 << 20, "Linux", "")
    assert machine.machine_id
