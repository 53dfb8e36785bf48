"""The Node object: capacity, labels and conditions of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from sandpool import __version__
from sandpool.api.conditions import FALSE, READY, TRUE, find_condition
from sandpool.api.kinds import LEASE, NODE, NODE_LEASES
from sandpool.api.labels import KUBELET_CERTIFICATE, RUNTIME_PREFIX, UNAVAILABLE_RUNTIMES
from sandpool.api.quantity import Quantity
from sandpool.api.resource import Object
from sandpool.engine.clock import micro_timestamp, timestamp
from sandpool.node.machine import Machine, Remaining
from sandpool.node.runtimes.handlers import tried

LEASE_DURATION: Final = 40  # seconds

_UNIT: Final = 10**9
# kubelet's thresholds.
_LEAST_MEMORY: Final = 100 << 20
_LEAST_STORAGE: Final = 0.10  # of all
_LEAST_PIDS: Final = 1000
_RUNTIMES_MISSING: Final = "RuntimesUnavailable"
# Reasons of conditions that exist only while something is missing.
_SELF_TEST_FAILED: Final = "SelfTestFailed"
_WEAKER: Final = "WeakerFallback"


@dataclass(frozen=True, slots=True)
class RegistrationOptions:
    """Settings of the Node object, and the part of the machine that is reserved."""

    name: str
    pods: int = 1000
    reserved_cpu: float = 0.0  # cores reserved for the machine itself
    reserved_memory: int = 256 << 20
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KubeletEndpoint:
    """Address of the node's own API, and the SHA-256 fingerprint of its certificate."""

    address: str
    port: int
    certificate: str


@dataclass(frozen=True, slots=True)
class NodeCapabilities:
    """Capabilities of the parts of the node on this machine. ``weaknesses`` are conditions: type -> message."""

    handlers: tuple[str, ...]
    unavailable: Mapping[str, str]
    weaknesses: Mapping[str, str]
    addresses: tuple[str, ...]
    endpoint: KubeletEndpoint | None = None
    any_handler: bool = False  # pods of every RuntimeClass can run; ``handlers`` is then empty


def capacity(machine: Machine, registration: RegistrationOptions) -> dict[str, str]:
    return {
        "cpu": str(machine.cpus),
        "memory": _bytes(machine.memory),
        "ephemeral-storage": _bytes(machine.storage),
        "pods": str(registration.pods),
    }


def allocatable(machine: Machine, registration: RegistrationOptions) -> dict[str, str]:
    """Return what is left for pods after the reservations."""
    return {
        **capacity(machine, registration),
        "cpu": str(Quantity(int((machine.cpus - registration.reserved_cpu) * _UNIT)).rounded_up(10**6)),
        "memory": _bytes(max(machine.memory - registration.reserved_memory, 0)),
        "ephemeral-storage": _bytes(int(machine.storage * (1 - _LEAST_STORAGE))),
    }


def node_metadata(machine: Machine, registration: RegistrationOptions, capabilities: NodeCapabilities) -> Object:
    """Return a merge patch: labels and annotations that the node no longer has are removed."""
    runtimes = {
        **dict.fromkeys((f"{RUNTIME_PREFIX}{name}" for name in capabilities.unavailable), None),
        **dict.fromkeys((f"{RUNTIME_PREFIX}{name}" for name in capabilities.handlers), "true"),
    }
    labels = {
        "kubernetes.io/hostname": registration.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": machine.architecture,
        **runtimes,
        **registration.labels,
    }
    missing = json.dumps(dict(capabilities.unavailable)) if capabilities.unavailable else None
    certificate = None if capabilities.endpoint is None else capabilities.endpoint.certificate
    return {"labels": labels, "annotations": {UNAVAILABLE_RUNTIMES: missing, KUBELET_CERTIFICATE: certificate}}


def new_node(machine: Machine, registration: RegistrationOptions, capabilities: NodeCapabilities) -> Object:
    parts = node_metadata(machine, registration, capabilities).items()
    stated = {part: {key: value for key, value in values.items() if value is not None} for part, values in parts}
    metadata = {"name": registration.name, **stated}
    return {"apiVersion": NODE.api_version, "kind": NODE.kind, "metadata": metadata, "spec": {}}


def node_status(
    machine: Machine,
    registration: RegistrationOptions,
    capabilities: NodeCapabilities,
    remaining: Remaining,
    known: list[Object],
    now: datetime,
) -> Object:
    """``known`` are the conditions in the API. The strategic merge patch keeps those of other controllers."""
    endpoint = capabilities.endpoint
    # The API server connects to the first address. The type is the merge key, so a patch cannot have two of one type.
    reached = capabilities.addresses if endpoint is None else (endpoint.address,)
    addresses = [{"type": "InternalIP", "address": address} for address in reached]
    stated = [_timed(each, known, now) for each in conditions(machine, capabilities, remaining)]
    return {
        "capacity": capacity(machine, registration),
        "allocatable": allocatable(machine, registration),
        "addresses": [*addresses, {"type": "Hostname", "address": machine.hostname}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 0 if endpoint is None else endpoint.port}},
        "nodeInfo": _node_info(machine),
        "runtimeHandlers": [{"name": handler} for handler in capabilities.handlers],
        "conditions": [*stated, *_withdrawn(known, {each["type"] for each in stated})],
    }


def conditions(machine: Machine, capabilities: NodeCapabilities, remaining: Remaining) -> list[Object]:
    memory = remaining.memory < _LEAST_MEMORY
    storage = remaining.storage < machine.storage * _LEAST_STORAGE
    pids = remaining.pids < _LEAST_PIDS
    found = [
        _pressure("MemoryPressure", memory, "InsufficientMemory", "SufficientMemory", "memory"),
        _pressure("DiskPressure", storage, "DiskPressure", "NoDiskPressure", "disk space"),
        _pressure("PIDPressure", pids, "InsufficientPID", "SufficientPID", "process numbers"),
        {"type": READY, "status": TRUE, "reason": "KubeletReady", "message": "the node runs pods"}
        if capabilities.handlers or capabilities.any_handler
        else {"type": READY, "status": FALSE, "reason": "NoRuntime", "message": _missing(capabilities)},
    ]
    found += [
        {"type": type, "status": TRUE, "reason": _WEAKER, "message": message}
        for type, message in capabilities.weaknesses.items()
    ]
    if tried(capabilities.unavailable):
        message = _missing(capabilities)
        found.append({"type": _RUNTIMES_MISSING, "status": TRUE, "reason": _SELF_TEST_FAILED, "message": message})
    return found


def stopped(known: list[Object], now: datetime) -> Object:
    """Return the status of a node that is about to stop."""
    condition = {"type": READY, "status": FALSE, "reason": "NodeStopped", "message": "the node agent has stopped"}
    return {"conditions": [_timed(condition, known, now)]}


def lease(registration: RegistrationOptions, node_uid: str, now: datetime) -> Object:
    owner = {"apiVersion": NODE.api_version, "kind": NODE.kind, "name": registration.name, "uid": node_uid}
    metadata = {"name": registration.name, "namespace": NODE_LEASES, "ownerReferences": [owner]}
    return {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.kind,
        "metadata": metadata,
        "spec": lease_spec(registration, now),
    }


def lease_spec(registration: RegistrationOptions, now: datetime) -> Object:
    return {
        "holderIdentity": registration.name,
        "leaseDurationSeconds": LEASE_DURATION,
        "renewTime": micro_timestamp(now),
    }


def _missing(capabilities: NodeCapabilities) -> str:
    missing = sorted(tried(capabilities.unavailable).items())
    return "; ".join(f"{name}: {why}" for name, why in missing) or "no runtime works here"


def _withdrawn(known: Iterable[Object], stated: set[str]) -> list[Object]:
    """Return patches that delete conditions about weaknesses that no longer exist."""
    ours = (_WEAKER, _SELF_TEST_FAILED)
    gone = [each["type"] for each in known if each.get("reason") in ours and each["type"] not in stated]
    return [{"$patch": "delete", "type": type} for type in gone]


def _pressure(type: str, under: bool, bad: str, good: str, what: str) -> Object:
    message = f"the node is short of {what}" if under else f"the node has enough {what}"
    return {"type": type, "status": TRUE if under else FALSE, "reason": bad if under else good, "message": message}


def _timed(condition: Object, known: Iterable[Object], now: datetime) -> Object:
    before = find_condition(list(known), condition["type"])
    same = before is not None and before.get("status") == condition["status"]
    since = (before or {}).get("lastTransitionTime") if same else None
    return {**condition, "lastHeartbeatTime": timestamp(now), "lastTransitionTime": since or timestamp(now)}


def _node_info(machine: Machine) -> Object:
    return {
        "machineID": machine.machine_id,
        "systemUUID": machine.machine_id,
        "bootID": machine.boot_id,
        "kernelVersion": machine.kernel,
        "osImage": machine.os_image,
        "containerRuntimeVersion": f"sandpool://{__version__}",
        "kubeletVersion": f"sandpool-{__version__}",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": machine.architecture,
    }


def _bytes(amount: int) -> str:
    return str(Quantity(amount // 1024 * 1024 * _UNIT, "binary"))
