"""PodStatus: consistency of its addresses, and validation of its transitions."""

from __future__ import annotations

from collections.abc import Iterator

from sandpool.api.causes import Cause, forbidden, immutable, invalid
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.copy_on_write import fill_absent, fill_empty, put
from sandpool.server.kinds.ip_addresses import validate_address


def scheduling_gated_condition(since: str | None) -> Object:
    """The PodScheduled condition of a pod with scheduling gates."""
    return {
        "type": "PodScheduled",
        "status": "False",
        "lastProbeTime": None,
        "lastTransitionTime": since,
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
    }


def default_pod_status(status: Object) -> Object:
    """Keep ``podIP`` and ``podIPs`` equal. Clients write either; ``podIP``, the older field, wins."""
    first, addresses = status.get("podIP"), status.get("podIPs") or []
    if first and (not addresses or addresses[0].get("ip") != first):
        return {**status, "podIPs": [{"ip": first}]}
    if addresses and not first:
        return {**status, "podIP": addresses[0].get("ip")}
    return status


def keep_unknown_status_fields(status: Object, before: Object) -> Object:
    """Keep fields that the server sets if a client that does not know them leaves them out."""
    kept = {key: before[key] for key in ("qosClass", "observedGeneration") if before.get(key)}
    status = fill_empty(status, kept)
    generations: dict[str, list[int]] = {}
    for condition in before.get("conditions") or ():
        if condition.get("observedGeneration"):
            generations.setdefault(condition.get("type", ""), []).append(condition["observedGeneration"])
    if not generations or not status.get("conditions"):
        return status
    conditions = []
    for condition in status["conditions"]:
        known = generations.get(condition.get("type", ""))
        conditions.append(fill_absent(condition, {"observedGeneration": known.pop(0)}) if known else condition)
    return put(status, "conditions", conditions)


def validate_pod_status(new: Object, old: Object) -> Iterator[Cause]:
    status, before = new.get("status") or {}, old.get("status") or {}
    if status is before:
        return
    nominated = status.get("nominatedNodeName")
    if nominated and nominated != before.get("nominatedNodeName"):
        yield from (invalid("status.nominatedNodeName", nominated, why) for why in names.subdomain(nominated))
        if old["spec"].get("nodeName"):
            yield forbidden("status.nominatedNodeName", "may not be set on pods that are already bound to a node")
    if (status.get("observedGeneration") or 0) < 0:
        yield invalid("status.observedGeneration", status["observedGeneration"], "must be a non-negative integer")
    if status.get("qosClass") != before.get("qosClass"):
        yield immutable("status.qosClass", status.get("qosClass"))
    yield from _validate_transitions(status, before, old["spec"])
    for field in ("podIPs", "hostIPs"):
        yield from _validate_addresses(status.get(field) or [], f"status.{field}")
    hosts = status.get("hostIPs") or []
    if hosts and hosts[0].get("ip") != status.get("hostIP"):
        yield invalid("status.hostIPs[0].ip", hosts[0].get("ip"), "must be equal to `hostIP`")


def _validate_addresses(addresses: list[Object], path: str) -> Iterator[Cause]:
    for index, address in enumerate(addresses):
        yield from validate_address(address.get("ip") or "", f"{path}[{index}]")
    families = [":" in (address.get("ip") or "") for address in addresses]
    if len(families) > 1 and sorted(families) != [False, True]:
        yield invalid(path, addresses, "may specify no more than one IP for each IP family")


def _validate_transitions(status: Object, before: Object, spec: Object) -> Iterator[Cause]:
    """Refuse to restart a terminated container that its restart policy does not restart."""
    now = {item.get("name"): item for item in status.get("containerStatuses") or ()}
    containers = {item.get("name"): item for item in spec.get("containers") or ()}
    for index, was in enumerate(before.get("containerStatuses") or ()):
        ended = (was.get("state") or {}).get("terminated")
        current = now.get(was.get("name"))
        if ended is None or current is None or (current.get("state") or {}).get("terminated") is not None:
            continue
        container = containers.get(was.get("name"), {})
        policy = container.get("restartPolicy") or spec.get("restartPolicy")
        restarts = policy == "Always" or (policy == "OnFailure" and ended.get("exitCode") != 0)
        if not restarts and not container.get("restartPolicyRules"):
            why = "may not be transitioned to non-terminated state"
            yield forbidden(f"status.containerStatuses[{index}].state", why)
