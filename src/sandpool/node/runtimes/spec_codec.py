"""JSON encoding of pods and containers, for the launcher and for the next agent."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sandpool.node.cgroups.limits import Limits
from sandpool.node.runtimes.runtime import (
    Bind,
    ContainerSpec,
    DataFile,
    HostToolchain,
    ImageLayers,
    Mount,
    PodSandbox,
    Scratch,
    Tmpfs,
)

Json = dict[str, Any]

#: The file in the state directory of a container, from before its start until it is deleted.
SPEC: Final = "spec.json"


def pod_to_json(pod: PodSandbox) -> Json:
    return {
        **_fields(pod),
        "directory": str(pod.directory),
        "netns": _text(pod.netns),
        "limits": _fields(pod.limits),
    }


def pod_from_json(data: Json) -> PodSandbox:
    limits, netns = Limits(**data["limits"]), _path(data["netns"])
    return PodSandbox(**{**data, "directory": Path(data["directory"]), "netns": netns, "limits": limits})


def spec_to_json(spec: ContainerSpec) -> Json:
    return {
        **_fields(spec),
        "env": dict(spec.env),
        "limits": _fields(spec.limits),
        "root": _root_to_json(spec.root),
        "scratch": {
            "size": spec.scratch.size,
            "directory": _text(spec.scratch.directory),
            "disk": _text(spec.scratch.disk),
        },
        "mounts": [_mount_to_json(mount) for mount in spec.mounts],
    }


def spec_from_json(data: Json) -> ContainerSpec:
    return ContainerSpec(
        **{
            **data,
            "argv": tuple(data["argv"]),
            "root": _root_from_json(data["root"]),
            "scratch": _scratch_from_json(data["scratch"]),
            "mounts": tuple(_mount_from_json(mount) for mount in data["mounts"]),
            "limits": Limits(**data["limits"]),
        }
    )


def recorded_roots(pods: Path) -> set[Path]:
    """Return the directories that make up the root file systems of all containers recorded below ``pods``."""
    found: set[Path] = set()
    for record in pods.glob(f"*/*/{SPEC}"):
        # The record was deleted meanwhile, or is incomplete because the container was never started. Only the root is
        # read: another version may have written the record.
        with suppress(FileNotFoundError, ValueError):
            root = _root_from_json(json.loads(record.read_bytes())["root"])
            found.update(root.layers, root.prefixes if isinstance(root, HostToolchain) else ())
    return found


def _root_to_json(root: HostToolchain | ImageLayers) -> Json:
    match root:
        case HostToolchain(prefixes, layers):
            return {"prefixes": [str(path) for path in prefixes], "above": [str(path) for path in layers]}
        case ImageLayers(layers):
            return {"layers": [str(path) for path in layers]}


def _root_from_json(data: Json) -> HostToolchain | ImageLayers:
    if "layers" in data:
        return ImageLayers(tuple(Path(path) for path in data["layers"]))
    above = data.get("above") or ()  # a container of an earlier version has none
    return HostToolchain(tuple(Path(path) for path in data["prefixes"]), tuple(Path(path) for path in above))


def _scratch_from_json(data: Json) -> Scratch:
    # A container of an earlier version may have no entry for the disk.
    return Scratch(data["size"], _path(data["directory"]), _path(data.get("disk")))


def _mount_to_json(mount: Mount) -> Json:
    match mount:
        case Bind():
            return {**_fields(mount), "source": str(mount.source)}
        case Tmpfs():
            return _fields(mount)
        case DataFile():
            return {**_fields(mount), "content": base64.b64encode(mount.content).decode()}


def _mount_from_json(data: Json) -> Mount:
    if "source" in data:
        return Bind(**{**data, "source": Path(data["source"])})
    if "content" in data:
        return DataFile(**{**data, "content": base64.b64decode(data["content"])})
    return Tmpfs(**data)


def _fields(record: PodSandbox | ContainerSpec | Mount | Limits) -> Json:
    """Return the fields of a dataclass. Unlike ``asdict`` this copies no value: one start encodes a spec twice."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
