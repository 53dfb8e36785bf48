"""PodSpec, of a Pod or of a pod template: defaults and validation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from sandpool.api.causes import Cause, forbidden, invalid, not_supported, required, too_long
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.containers import (
    ContainerContext,
    default_container,
    validate_containers,
    validate_ephemeral_containers,
    validate_init_containers,
)
from sandpool.server.kinds.copy_on_write import each, fill_absent, fill_empty, inside, put
from sandpool.server.kinds.ip_addresses import validate_address
from sandpool.server.kinds.metadata import validate_labels
from sandpool.server.kinds.resource_requirements import (
    default_amounts,
    default_requests_to_limits,
    default_requirements,
    validate_requirements,
)
from sandpool.server.kinds.scheduling import (
    validate_affinity,
    validate_gates,
    validate_spread,
    validate_tolerations,
)
from sandpool.server.kinds.security_contexts import validate_host_users, validate_pod_security_context
from sandpool.server.kinds.volumes import default_volume, validate_volumes

CONTAINER_LISTS: Final = ("containers", "initContainers", "ephemeralContainers")
_RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")
_DNS_POLICIES: Final = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_PREEMPTION_POLICIES: Final = ("PreemptLowerPriority", "Never")
_LARGEST: Final = 2**31 - 1


def default_pod_spec(spec: Object) -> Object:
    """Set the defaults of every pod spec, including those in templates."""
    spec = fill_empty(
        spec, {"dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler"}
    )
    spec = fill_absent(spec, {"securityContext": {}, "terminationGracePeriodSeconds": 30})
    # The deprecated field serviceAccount counts only if serviceAccountName is not set.
    if account := spec.get("serviceAccountName") or spec.get("serviceAccount"):
        spec = put(put(spec, "serviceAccountName", account), "serviceAccount", account)
    for kind in CONTAINER_LISTS:
        spec = inside(spec, kind, lambda containers: each(containers, default_container))
    spec = inside(spec, "volumes", lambda volumes: each(volumes, default_volume))
    spec = inside(spec, "resources", default_requirements)
    return inside(spec, "overhead", default_amounts)


def default_own_pod_spec(spec: Object) -> Object:
    """Set the defaults that only the spec of a Pod gets, not that of a template."""
    spec = fill_absent(spec, {"enableServiceLinks": True})
    for kind in ("containers", "initContainers"):
        spec = inside(spec, kind, lambda containers: each(containers, _request_limits))
        if spec.get("hostNetwork"):
            spec = inside(spec, kind, lambda containers: each(containers, _expose_ports))
    return inside(spec, "resources", default_requests_to_limits)


def _request_limits(container: Object) -> Object:
    return inside(container, "resources", default_requests_to_limits)


def _expose_ports(container: Object) -> Object:
    return inside(container, "ports", lambda ports: each(ports, _expose_port))


def _expose_port(port: Object) -> Object:
    return fill_empty(port, {"hostPort": port["containerPort"]}) if port.get("containerPort") else port


def validate_pod_spec(spec: Object, path: str, *, pod_name: str = "", pod: bool = False) -> Iterator[Cause]:
    """Validate a pod spec. ``pod``: it is the spec of a Pod, not of a template."""
    volumes, wrong = validate_volumes(spec.get("volumes") or [], f"{path}.volumes", pod_name)
    yield from wrong
    context = ContainerContext(volumes, spec.get("terminationGracePeriodSeconds"), spec.get("hostUsers") is not False)
    regular, init = spec.get("containers") or [], spec.get("initContainers") or []
    yield from validate_containers(regular, context, f"{path}.containers")
    yield from validate_init_containers(init, regular, context, f"{path}.initContainers")
    ephemeral = spec.get("ephemeralContainers") or []
    yield from validate_ephemeral_containers(ephemeral, [*regular, *init], context, f"{path}.ephemeralContainers")
    if (resources := spec.get("resources")) is not None:
        yield from validate_requirements(resources, f"{path}.resources", pod_level=True)
    yield from _validate_host_ports(spec, path, pod)
    yield from _validate_choices(spec, path)
    yield from validate_labels(spec.get("nodeSelector") or {}, f"{path}.nodeSelector")
    yield from validate_pod_security_context(spec.get("securityContext") or {}, spec, f"{path}.securityContext")
    yield from validate_affinity(spec.get("affinity") or {}, f"{path}.affinity")
    yield from _validate_dns(spec, f"{path}.dnsConfig")
    for index, gate in enumerate(spec.get("readinessGates") or ()):
        kind = gate.get("conditionType") or ""
        at = f"{path}.readinessGates[{index}].conditionType"
        yield from (invalid(at, kind, why) for why in names.qualified_name(kind))
    yield from validate_gates(spec.get("schedulingGates") or [], f"{path}.schedulingGates")
    yield from validate_spread(spec.get("topologySpreadConstraints") or [], f"{path}.topologySpreadConstraints")
    yield from validate_host_users(spec, path)
    yield from _validate_names(spec, path)
    seconds = spec.get("activeDeadlineSeconds")
    if seconds is not None and not 1 <= seconds <= _LARGEST:
        yield invalid(f"{path}.activeDeadlineSeconds", seconds, f"must be between 1 and {_LARGEST}, inclusive")
    yield from validate_tolerations(spec.get("tolerations") or [], f"{path}.tolerations")
    yield from _validate_host_aliases(spec.get("hostAliases") or [], f"{path}.hostAliases")


def _validate_host_ports(spec: Object, path: str, pod: bool) -> Iterator[Cause]:
    if not spec.get("hostNetwork"):
        return
    for index, container in enumerate(spec.get("containers") or ()):
        for position, port in enumerate(container.get("ports") or ()):
            exposed = port.get("hostPort") or 0
            if (pod or exposed) and exposed != port.get("containerPort"):
                at = f"{path}.containers[{index}].ports[{position}].hostPort"
                yield invalid(at, exposed, "must match `containerPort` when `hostNetwork` is true")


def _validate_choices(spec: Object, path: str) -> Iterator[Cause]:
    if spec.get("restartPolicy") not in _RESTART_POLICIES:
        yield not_supported(f"{path}.restartPolicy", spec.get("restartPolicy"), _RESTART_POLICIES)
    if spec.get("dnsPolicy") not in _DNS_POLICIES:
        yield not_supported(f"{path}.dnsPolicy", spec.get("dnsPolicy"), _DNS_POLICIES)
    preemption = spec.get("preemptionPolicy")
    if preemption is not None and preemption not in _PREEMPTION_POLICIES:
        yield not_supported(f"{path}.preemptionPolicy", preemption, _PREEMPTION_POLICIES)
    system = (spec.get("os") or {}).get("name")
    if spec.get("os") is not None and system not in ("linux", "windows"):
        yield not_supported(f"{path}.os.name", system or "", ("linux", "windows"))


def _validate_names(spec: Object, path: str) -> Iterator[Cause]:
    override = spec.get("hostnameOverride")
    if override is not None:
        if spec.get("setHostnameAsFQDN"):
            yield forbidden(f"{path}.hostnameOverride", "may not be specified when setHostnameAsFQDN is true")
        if spec.get("hostNetwork"):
            yield forbidden(f"{path}.hostnameOverride", "may not be specified when hostNetwork is true")
        if len(override) > 64:
            yield too_long(f"{path}.hostnameOverride", 64)
        yield from (invalid(f"{path}.hostnameOverride", override, why) for why in names.subdomain(override))
    subdomains = (("serviceAccountName", names.subdomain), ("nodeName", names.subdomain))
    labels = (("hostname", names.label), ("subdomain", names.label))
    classes = (("priorityClassName", names.subdomain), ("runtimeClassName", names.subdomain))
    for field, check in chain(subdomains, labels, classes):
        if value := spec.get(field):
            yield from (invalid(f"{path}.{field}", value, why) for why in check(value))


def _validate_dns(spec: Object, path: str) -> Iterator[Cause]:
    config = spec.get("dnsConfig")
    if spec.get("dnsPolicy") == "None":
        if config is None:
            yield required(path, "must provide `dnsConfig` when `dnsPolicy` is None")
            return
        if not config.get("nameservers"):
            why = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            yield required(f"{path}.nameservers", why)
            return
    if config is None:
        return
    servers, searches = config.get("nameservers") or [], config.get("searches") or []
    if len(servers) > 3:
        yield invalid(f"{path}.nameservers", servers, "must not have more than 3 nameservers")
    for index, server in enumerate(servers):
        yield from validate_address(server, f"{path}.nameservers[{index}]")
    if len(searches) > 32:
        yield invalid(f"{path}.searches", searches, "must not have more than 32 search paths")
    if len(" ".join(searches)) > 2048:
        why = "must not have more than 2048 characters (including spaces) in the search list"
        yield invalid(f"{path}.searches", searches, why)
    for index, search in enumerate(searches):
        if search != ".":
            search = search.removesuffix(".")
            yield from (invalid(f"{path}.searches[{index}]", search, why) for why in names.search_domain(search))
    for index, option in enumerate(config.get("options") or ()):
        if not option.get("name"):
            yield required(f"{path}.options[{index}]", "must not be empty")


def _validate_host_aliases(aliases: list[Object], path: str) -> Iterator[Cause]:
    for index, alias in enumerate(aliases):
        yield from validate_address(alias.get("ip") or "", f"{path}[{index}].ip")
        for position, name in enumerate(alias.get("hostnames") or ()):
            at = f"{path}[{index}].hostnames[{position}]"
            yield from (invalid(at, name, why) for why in names.subdomain(name))
