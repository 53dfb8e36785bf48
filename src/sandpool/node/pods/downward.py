"""Downward API: fields of a pod for its environment variables and files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sandpool.api.quantity import parse
from sandpool.api.resource import Object, SharedObject

_SUBSCRIPT: Final = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


class UnknownField(Exception):
    """The downward API has no such field."""


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """The node and the addresses of a pod, which its spec does not contain. Unknown addresses are empty."""

    node_name: str
    host_ips: tuple[str, ...] = ()
    pod_ips: tuple[str, ...] = ()


def field_value(pod: SharedObject, path: str, placement: PodPlacement) -> str:
    """Return the value of a ``fieldRef``."""
    metadata, spec = pod["metadata"], pod["spec"]
    if match := _SUBSCRIPT.fullmatch(path):
        found: Mapping[str, str] = metadata.get(match[1]) or {}
        return found.get(match[2], "")
    match path:
        case "metadata.name" | "metadata.namespace" | "metadata.uid":
            text: str = metadata.get(path.removeprefix("metadata.")) or ""
            return text
        case "metadata.labels" | "metadata.annotations":
            return _lines(metadata.get(path.removeprefix("metadata.")) or {})
        case "spec.nodeName":
            return placement.node_name
        case "spec.serviceAccountName":
            account: str = spec.get("serviceAccountName") or ""
            return account
        case "status.hostIP":
            return _first(placement.host_ips)
        case "status.hostIPs":
            return ",".join(placement.host_ips)
        case "status.podIP":
            return _first(placement.pod_ips)
        case "status.podIPs":
            return ",".join(placement.pod_ips)
    raise UnknownField(f"unsupported fieldPath: {path}")


def resource_value(container: Object, reference: Object, allocatable: Mapping[str, str]) -> str:
    """Return the value of a ``resourceFieldRef``, rounded up to whole units of its divisor. An unset limit is the
    node's allocatable amount."""
    kind, _, name = (reference.get("resource") or "").partition(".")
    if kind not in ("limits", "requests") or not name:
        raise UnknownField(f"unsupported container resource: {reference.get('resource')}")
    amounts = (container.get("resources") or {}).get(kind) or {}
    amount = amounts.get(name) or (allocatable.get(name, "0") if kind == "limits" else "0")
    divisor = parse(reference.get("divisor") or "1").billionths or parse("1").billionths
    return str(-(-parse(amount).billionths // divisor))


def _first(addresses: Sequence[str]) -> str:
    return addresses[0] if addresses else ""


def _lines(entries: Mapping[str, str]) -> str:
    """Format labels or annotations as downward API files do: one line per entry, values quoted as Go quotes them."""
    return "\n".join(f"{key}={_quoted(value)}" for key, value in sorted(entries.items()))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    for plain, escape in (("\n", "\\n"), ("\t", "\\t"), ("\r", "\\r")):
        escaped = escaped.replace(plain, escape)
    return f'"{escaped}"'
