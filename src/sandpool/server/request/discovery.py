"""API discovery documents, in the legacy and the aggregated form.

The legacy form is a tree of small documents (``/api``, ``/apis``, ``/apis/<group>``, ``/apis/<group>/<version>``).
The aggregated form holds a whole subtree in one document and is negotiated on ``/api`` and ``/apis``. Every function
here is pure; the caller caches the encoded result until the set of resources changes.
"""

from __future__ import annotations

import base64
import hashlib
import platform
import re
from collections.abc import Iterable

from sandpool.api.kinds import subresource
from sandpool.api.resource import Object, ResourceType
from sandpool.server.resources import Resource

# The Kubernetes release of the API. kubectl's version skew warning and the Google Cloud dispatcher read major and
# minor; the part after "+" tells a person that this is not kube-apiserver.
KUBERNETES_VERSION = "1.36.3"

# Order of the built-in groups. It decides which group kubectl picks for a bare name like "events". Groups of custom
# resources follow, by name.
_GROUP_ORDER = (
    "apiregistration.k8s.io",
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
    "resource.k8s.io",
    "flowcontrol.apiserver.k8s.io",
)


def version() -> Object:
    """``/version``. Clients require all of these fields."""
    major, minor, _ = KUBERNETES_VERSION.split(".")
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": minor,
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": str(int(minor) - 1),
        "gitVersion": f"v{KUBERNETES_VERSION}+sandpool",
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": f"python{platform.python_version()}",
        "compiler": platform.python_implementation().lower(),
        "platform": f"{platform.system().lower()}/{machine}",
    }


def api_versions(address: str) -> Object:
    """``/api``. ``address`` is host:port of the server for clients."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def group_list(resources: Iterable[Resource]) -> Object:
    """``/apis``."""
    groups = _groups(resources)
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(name, versions) for name, versions in groups.items() if name],
    }


def group(resources: Iterable[Resource], name: str) -> Object | None:
    """``/apis/<name>``; None if there is no such group."""
    versions = _groups(resources).get(name)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)} if versions and name else None


def resource_list(resources: Iterable[Resource], group: str, version: str) -> Object | None:
    """``/api/v1`` and ``/apis/<group>/<version>``; None if there is no such version."""
    resources = list(resources)
    served = _groups(resources).get(group, {}).get(version)
    if not served:
        return None
    stored = {resource.storage: resource.type for resource in resources if resource.to_stored is None}
    listing: Object = {"kind": "APIResourceList"}
    if group:  # kube-apiserver leaves it out of /api/v1 for clients older than the field
        listing["apiVersion"] = "v1"
    listing["groupVersion"] = f"{group}/{version}" if group else version
    listing["resources"] = [entry for resource in served for entry in _listed(resource, stored.get(resource.storage))]
    return listing


def aggregated(resources: Iterable[Resource], *, core: bool, version: str) -> Object:
    """``/api`` (``core``) or ``/apis`` as one APIGroupDiscoveryList. ``version`` is the version of that kind: v2, or
    v2beta1, which has the same fields."""
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": [
            {
                "metadata": {"name": name} if name else {},
                "versions": [
                    {"version": version, "resources": [_discovered(r) for r in served], "freshness": "Current"}
                    for version, served in versions.items()
                ],
            }
            for name, versions in _groups(resources).items()
            if core == (name == "")
        ],
    }


def etag(document: bytes) -> str:
    """The entity tag of an encoded document, for If-None-Match."""
    return f'"{hashlib.sha512(document).hexdigest().upper()}"'


def version_order(version: str) -> tuple[int, int, int, str]:
    """Sort key that puts the preferred version first: v2, v1, v1beta2, v1beta1, v1alpha1, then anything by name."""
    match = re.fullmatch(r"v([1-9][0-9]*)(?:(alpha|beta)([1-9][0-9]*))?", version)
    if match is None:
        return 3, 0, 0, version
    major, stage, minor = match.groups()
    return {None: 0, "beta": 1, "alpha": 2}[stage], -int(major), -int(minor or 0), version


def group_order(name: str) -> tuple[int, str]:
    """Sort key of groups; the core group comes first."""
    if not name:
        return -1, ""
    return _GROUP_ORDER.index(name) if name in _GROUP_ORDER else len(_GROUP_ORDER), name


def _groups(resources: Iterable[Resource]) -> dict[str, dict[str, list[Resource]]]:
    """Group -> version -> resources, each level in the order of the documents."""
    ordered = sorted(resources, key=lambda r: (group_order(r.type.group), version_order(r.type.version), r.type.plural))
    groups: dict[str, dict[str, list[Resource]]] = {}
    for resource in ordered:
        groups.setdefault(resource.type.group, {}).setdefault(resource.type.version, []).append(resource)
    return groups


def _group(name: str, versions: Iterable[str]) -> Object:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _listed(resource: Resource, stored: ResourceType | None) -> list[Object]:
    """The entries of a resource and its subresources in an APIResourceList. ``stored`` is the version in which its
    objects are kept, if that one is served."""
    type = resource.type
    main: Object = {
        "name": type.plural,
        "singularName": type.singular,
        "namespaced": type.namespaced,
        "kind": type.kind,
        "verbs": list(type.verbs),
    }
    if type.short_names:
        main["shortNames"] = list(type.short_names)
    if type.categories:
        main["categories"] = list(type.categories)
    if stored and "list" in type.verbs:
        main["storageVersionHash"] = _storage_version_hash(stored)
    entries = [main]
    for name, verbs, (group, version, kind) in _subresources(resource):
        entry: Object = {"name": f"{type.plural}/{name}", "singularName": "", "namespaced": type.namespaced}
        if group:
            entry |= {"group": group, "version": version}
        entries.append(entry | {"kind": kind, "verbs": list(verbs)})
    return entries


def _discovered(resource: Resource) -> Object:
    """The entry of a resource with its subresources in aggregated discovery."""
    type = resource.type
    # kube-apiserver spells out group and version of custom kinds only; clients fill in the blanks for the others.
    own = type.group if resource.custom else "", type.version if resource.custom else ""

    def response_kind(group: str, version: str, kind: str) -> Object:
        return {"group": group or own[0], "version": version or own[1], "kind": kind}

    entry: Object = {
        "resource": type.plural,
        "responseKind": response_kind("", "", type.kind),
        "scope": "Namespaced" if type.namespaced else "Cluster",
        "singularResource": type.singular,
        "verbs": list(type.verbs),
    }
    if type.short_names:
        entry["shortNames"] = list(type.short_names)
    if type.categories:
        entry["categories"] = list(type.categories)
    subresources = [
        {"subresource": name, "responseKind": response_kind(*kind), "verbs": list(verbs)}
        for name, verbs, kind in _subresources(resource)
    ]
    if subresources:
        entry["subresources"] = subresources
    return entry


def _subresources(resource: Resource) -> list[tuple[str, tuple[str, ...], tuple[str, str, str]]]:
    """(name, verbs, exchanged kind) of each subresource, by name. The group and version of the kind are empty where
    they are those of the resource."""
    type = resource.type
    found = []
    for name in sorted(type.subresources):
        sub = subresource(type, name)
        foreign = sub.group and (sub.group, sub.version) != (type.group, type.version)
        exchanged = (sub.group, sub.version) if foreign else ("", "")
        found.append((name, sub.verbs, (*exchanged, sub.kind or type.kind)))
    return found


def _storage_version_hash(stored: ResourceType) -> str:
    """Equal for two resources that are views of the same stored objects: clients that migrate storage compare it."""
    text = f"{stored.group}/{stored.version}/{stored.kind}"
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:8]).decode()
