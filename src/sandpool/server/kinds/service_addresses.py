"""Cluster IPs and IP families of a Service.

``clusterIP`` and the first of ``clusterIPs`` are the same address; older clients write only the former. ``ipFamilies``
and ``ipFamilyPolicy`` follow from the addresses and from the families of the cluster, which is IPv4 here. A headless
Service without a selector may name IPv6 as well, because its endpoints are managed by a client.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address
from typing import Final

from sandpool.api.causes import Cause, duplicate, invalid, not_supported, required
from sandpool.api.resource import Object
from sandpool.server.kinds.copy_on_write import fill_absent, fill_empty, put
from sandpool.server.kinds.ip_addresses import read_address, validate_address

_OURS: Final = "IPv4"
_FAMILIES: Final = ("IPv4", "IPv6")
_OTHER: Final = {"IPv4": "IPv6", "IPv6": "IPv4"}
_POLICIES: Final = ("PreferDualStack", "RequireDualStack", "SingleStack")
_POLICY: Final = "spec.ipFamilyPolicy"


def needs_address(spec: Object) -> bool:
    return spec.get("type") != "ExternalName"


def is_headless(spec: Object) -> bool:
    return spec.get("clusterIPs") == ["None"]


def _has_foreign_endpoints(spec: Object) -> bool:
    """Whether a client manages the endpoints: headless, without a selector."""
    return spec.get("clusterIP") == "None" and not spec.get("selector")


def ip_family(address: str) -> str:
    return "IPv4" if isinstance(read_address(address), IPv4Address) else "IPv6"


def normalize_addresses(spec: Object, before: Object | None) -> Object:
    """Make ``clusterIP`` and ``clusterIPs`` agree, and keep the addresses that an update leaves out."""
    address, addresses = spec.get("clusterIP") or "", spec.get("clusterIPs") or []
    if before is None:
        return {**spec, "clusterIPs": [address]} if address and not addresses else spec
    had, all_had = before.get("clusterIP") or "", before.get("clusterIPs") or []
    if had and needs_address(before) and needs_address(spec):
        spec = fill_empty(spec, {"clusterIP": had, "clusterIPs": all_had})
        address, addresses = spec["clusterIP"], spec["clusterIPs"]
    if address == had:
        return {**spec, "clusterIPs": all_had} if all_had and not addresses else spec
    if addresses != all_had:
        return spec
    return {**spec, "clusterIPs": [address]} if address else {**spec, "clusterIPs": []}


def normalize_ip_families(spec: Object, before: Object | None) -> tuple[Object, list[Cause]]:
    """Set the IP families and their policy; returns the spec and its errors."""
    if not needs_address(spec) or (before is not None and _still_prefers_both(spec, before)):
        return spec, []
    spec = _with_policy(spec, before)
    if wrong := list(validate_addresses(spec, before)):
        return spec, wrong
    if before is not None:
        spec = _single_family(spec, before)
    wrong = list(_validate_count(spec, before))
    families = list(spec.get("ipFamilies") or ())
    for index, address in enumerate(spec.get("clusterIPs") or ()):
        if address == "None":
            break
        if index >= len(families):
            family = ip_family(address)
            families.append(family)
            if family != _OURS:
                why = f"{family} is not configured on this cluster"
                wrong.append(invalid(f"spec.clusterIPs[{index}]", spec["clusterIPs"], why))
    families = families or [_OURS]
    if wrong:
        return spec, wrong
    if _has_foreign_endpoints(spec):
        if len(families) == 1 and spec["ipFamilyPolicy"] != "SingleStack":
            families.append(_OTHER[families[0]])
    else:
        wrong = list(_validate_spoken(spec, families))
    return put(spec, "ipFamilies", families), wrong


def _still_prefers_both(spec: Object, before: Object) -> bool:
    same = all(spec.get(field) == before.get(field) for field in ("type", "clusterIPs", "ipFamilies", "ipFamilyPolicy"))
    return same and spec.get("ipFamilyPolicy") == "PreferDualStack"


def _with_policy(spec: Object, before: Object | None) -> Object:
    policy = (before or {}).get("ipFamilyPolicy")
    return fill_absent(
        spec, {"ipFamilyPolicy": policy or ("RequireDualStack" if _has_foreign_endpoints(spec) else "SingleStack")}
    )


def _single_family(spec: Object, before: Object) -> Object:
    """Drop the second family and address when the policy becomes SingleStack and nothing else changes."""
    if spec["ipFamilyPolicy"] == "SingleStack":
        for field in ("clusterIPs", "ipFamilies"):
            if spec.get(field) == before.get(field) and len(spec.get(field) or ()) > 1:
                spec = {**spec, field: spec[field][:1]}
    return spec


def _validate_count(spec: Object, before: Object | None) -> Iterator[Cause]:
    policy = spec["ipFamilyPolicy"]
    for field, one, several in (
        ("clusterIPs", "cluster IP", "cluster IPs"),
        ("ipFamilies", "IP family", "IP families"),
    ):
        count, was = len(spec.get(field) or ()), len((before or {}).get(field) or ())
        if policy != "SingleStack" and 0 < count < was:
            yield invalid(_POLICY, policy, f"must be 'SingleStack' to release the secondary {one}")
        if policy == "SingleStack" and count == 2:
            why = f"must be 'RequireDualStack' or 'PreferDualStack' when multiple {several} are specified"
            yield invalid(_POLICY, policy, why)


def _validate_spoken(spec: Object, families: list[str]) -> Iterator[Cause]:
    policy = spec["ipFamilyPolicy"]
    if policy == "RequireDualStack":
        yield invalid(_POLICY, policy, "this cluster is not configured for dual-stack services")
    for index, family in enumerate(families):
        if family != _OURS:
            yield invalid(f"spec.ipFamilies[{index}]", family, "not configured on this cluster")


def validate_addresses(spec: Object, before: Object | None) -> Iterator[Cause]:
    """Validate the address fields on their own, before allocation."""
    address, addresses = spec.get("clusterIP") or "", spec.get("clusterIPs") or []
    if address and not addresses:
        yield required("spec.clusterIPs")
    elif address and addresses[0] != address:
        yield invalid("spec.clusterIPs", addresses, "first value must match `clusterIP`")
    elif addresses and not address:
        yield invalid("spec.clusterIPs", addresses, "must be empty when `clusterIP` is not specified")
    families = spec.get("ipFamilies") or []
    for index, family in enumerate(families):
        if family not in _FAMILIES:
            yield not_supported(f"spec.ipFamilies[{index}]", family, _FAMILIES)
        if family in families[:index]:
            yield duplicate(f"spec.ipFamilies[{index}]", family)
    policy = spec.get("ipFamilyPolicy")
    if policy is not None and policy not in _POLICIES:
        yield not_supported(_POLICY, policy, _POLICIES)
    wrong = list(_validate_each_address(addresses, (before or {}).get("clusterIPs") or []))
    yield from wrong
    if len(addresses) > 2:
        yield invalid("spec.clusterIPs", addresses, "may only hold up to 2 values")
    if wrong:
        return
    if len(addresses) > 1 and len({ip_family(each) for each in addresses}) == 1:
        yield invalid("spec.clusterIPs", addresses, "may specify no more than one IP for each IP family")
    if not is_headless(spec):
        for index, (each, family) in enumerate(zip(addresses, families, strict=False)):
            if family in _FAMILIES and ip_family(each) != family:
                why = f"expected an {family} value as indicated by `ipFamilies[{index}]`"
                yield invalid(f"spec.clusterIPs[{index}]", each, why)


def _validate_each_address(addresses: list[str], known: list[str]) -> Iterator[Cause]:
    for index, address in enumerate(addresses):
        if index or address != "None":
            yield from validate_address(address, f"spec.clusterIPs[{index}]", known)
        elif len(addresses) > 1:
            yield invalid("spec.clusterIPs", addresses, "'None' must be the first and only value")
