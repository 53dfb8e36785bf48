"""Volumes of a pod: defaults and validation per source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from sandpool.api.causes import Cause, duplicate, forbidden, invalid, not_supported, required
from sandpool.api.quantity import canonical, parse
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.containers import pull_policy
from sandpool.server.kinds.copy_on_write import each, fill_absent, fill_empty, inside, put
from sandpool.server.kinds.persistent_volume_claims import default_claim_spec, validate_claim_spec
from sandpool.server.kinds.value_sources import default_downward_file, validate_downward_file, validate_key_to_path

FILE_MODE: Final = 0o644
_NOT_A_MODE: Final = "must be a number between 0 and 0777 (octal), both inclusive"

_HOST_PATH_TYPES: Final = (
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
)

# Defaults of the sources without nested defaults.
_PLAIN_DEFAULTS: Final[dict[str, Object]] = {
    "secret": {"defaultMode": FILE_MODE},
    "configMap": {"defaultMode": FILE_MODE},
    "hostPath": {"type": ""},
    "iscsi": {"iscsiInterface": "default"},
    "rbd": {"pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"},
    "azureDisk": {"cachingMode": "ReadWrite", "fsType": "ext4", "readOnly": False, "kind": "Shared"},
    "scaleIO": {"storageMode": "ThinProvisioned", "fsType": "xfs"},
}


def default_volume(volume: Object) -> Object:
    sources = [key for key, source in volume.items() if key != "name" and source is not None]
    if not sources:
        return {**volume, "emptyDir": {}}
    for source in sources:
        if source in _PLAIN_DEFAULTS:
            volume = put(volume, source, fill_absent(volume[source], _PLAIN_DEFAULTS[source]))
        elif edit := _DEFAULTS.get(source):
            volume = inside(volume, source, edit)
    return volume


def _default_downward(source: Object) -> Object:
    return inside(
        fill_absent(source, {"defaultMode": FILE_MODE}), "items", lambda items: each(items, default_downward_file)
    )


def _default_projected(source: Object) -> Object:
    return inside(
        fill_absent(source, {"defaultMode": FILE_MODE}), "sources", lambda items: each(items, _default_projection)
    )


def _default_projection(projection: Object) -> Object:
    projection = inside(
        projection,
        "downwardAPI",
        lambda source: inside(source, "items", lambda items: each(items, default_downward_file)),
    )
    return inside(projection, "serviceAccountToken", lambda token: fill_absent(token, {"expirationSeconds": 3600}))


def _default_ephemeral(source: Object) -> Object:
    return inside(
        source,
        "volumeClaimTemplate",
        lambda template: inside(fill_absent(template, {"metadata": {}}), "spec", default_claim_spec),
    )


_DEFAULTS: Final[dict[str, Callable[[Object], Object]]] = {
    "emptyDir": lambda source: inside(source, "sizeLimit", canonical),
    "downwardAPI": _default_downward,
    "projected": _default_projected,
    "ephemeral": _default_ephemeral,
    "image": lambda source: fill_empty(source, {"pullPolicy": pull_policy(source.get("reference", ""))}),
}


def validate_volumes(volumes: list[Object], path: str, pod_name: str = "") -> tuple[dict[str, Object], list[Cause]]:
    """Validate volumes; returns the valid ones by name, and the errors of the others."""
    sound: dict[str, Object] = {}
    causes: list[Cause] = []
    created = {f"{pod_name}-{volume.get('name')}" for volume in volumes if pod_name and "ephemeral" in volume}
    for index, volume in enumerate(volumes):
        at, name = f"{path}[{index}]", volume.get("name") or ""
        wrong = list(_validate_source(volume, at))
        if not name:
            wrong.append(required(f"{at}.name"))
        else:
            wrong += [invalid(f"{at}.name", name, why) for why in names.label(name)]
        if name in sound:
            wrong.append(duplicate(f"{at}.name", name))
        if not wrong:
            sound[name] = volume
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if claim in created:
            why = "must not reference a PVC that gets created for an ephemeral volume"
            wrong.append(invalid(f"{at}.persistentVolumeClaim.claimName", claim, why))
        causes += wrong
    return sound, causes


def _validate_source(volume: Object, path: str) -> Iterator[Cause]:
    first = True
    for source, value in volume.items():
        if source == "name" or value is None:
            continue
        if not first:
            yield forbidden(f"{path}.{source}", "may not specify more than 1 volume type")
        elif check := _CHECKS.get(source):
            yield from check(value, f"{path}.{source}")
        first = False


def _validate_empty_dir(source: Object, path: str) -> Iterator[Cause]:
    if parse(source.get("sizeLimit") or "0").billionths < 0:
        yield forbidden(f"{path}.sizeLimit", "SizeLimit field must be a valid resource quantity")


def validate_host_path(source: Object, path: str) -> Iterator[Cause]:
    if not source.get("path"):
        yield required(f"{path}.path")
        return
    if ".." in source["path"].split("/"):
        yield invalid(f"{path}.path", source["path"], "must not contain '..'")
    if source.get("type", "") not in _HOST_PATH_TYPES:
        yield not_supported(f"{path}.type", source["type"], _HOST_PATH_TYPES)


def validate_mode(mode: Any, path: str) -> Iterator[Cause]:
    if mode is not None and not 0 <= mode <= 0o777:
        yield invalid(path, mode, _NOT_A_MODE)


def _validate_files(name_field: str) -> Callable[[Object, str], Iterator[Cause]]:
    """A validator for a source that projects keys of a Secret or ConfigMap as files."""

    def check(source: Object, path: str) -> Iterator[Cause]:
        if not source.get(name_field):
            yield required(f"{path}.{name_field}")
        yield from validate_mode(source.get("defaultMode"), f"{path}.defaultMode")
        for index, item in enumerate(source.get("items") or ()):
            yield from validate_key_to_path(item, f"{path}.items[{index}]")
            yield from validate_mode(item.get("mode"), f"{path}.items[{index}].mode")

    return check


def _validate_downward(source: Object, path: str) -> Iterator[Cause]:
    yield from validate_mode(source.get("defaultMode"), f"{path}.defaultMode")
    for file in source.get("items") or ():
        yield from validate_downward_file(file, path)
        yield from validate_mode(file.get("mode"), f"{path}.mode")


def _validate_projected(source: Object, path: str) -> Iterator[Cause]:
    yield from validate_mode(source.get("defaultMode"), f"{path}.defaultMode")
    taken: set[str] = set()
    for index, projection in enumerate(source.get("sources") or ()):
        at = f"{path}.sources[{index}]"
        for kind in ("secret", "configMap"):
            if (value := projection.get(kind)) is not None:
                yield from _validate_files("name")(value, f"{at}.{kind}")
                yield from _paths(value.get("items"), taken, path, value.get("name", ""))
        if (downward := projection.get("downwardAPI")) is not None:
            yield from _validate_downward(downward, f"{at}.downwardAPI")
            yield from _paths(downward.get("items"), taken, path, None)
        if (token := projection.get("serviceAccountToken")) is not None:
            yield from _validate_token(token, f"{at}.serviceAccountToken", path)
        if not [key for key, value in projection.items() if value is not None]:
            yield required(at, "must specify exactly 1 volume projection type")
        elif len(projection) > 1:
            yield forbidden(at, "may not specify more than 1 volume type")


def _paths(items: list[Object] | None, taken: set[str], path: str, shown: str | None) -> Iterator[Cause]:
    for item in items or ():
        file = item.get("path")
        if file and file in taken:
            yield invalid(path, file if shown is None else shown, "conflicting duplicate paths")
        taken.add(file or "")


def _validate_token(token: Object, path: str, volume: str) -> Iterator[Cause]:
    seconds = token.get("expirationSeconds") or 0
    if seconds < 600:
        yield invalid(f"{path}.expirationSeconds", seconds, "may not specify a duration less than 10 minutes")
    if seconds > 1 << 32:
        yield invalid(f"{path}.expirationSeconds", seconds, "may not specify a duration larger than 2^32 seconds")
    if not token.get("path"):
        yield required(f"{volume}.path")


def _validate_claim(source: Object, path: str) -> Iterator[Cause]:
    if not source.get("claimName"):
        yield required(f"{path}.claimName")


def _validate_ephemeral(source: Object, path: str) -> Iterator[Cause]:
    template = source.get("volumeClaimTemplate")
    if template is None:
        yield required(f"{path}.volumeClaimTemplate")
    else:
        yield from validate_claim_spec(template.get("spec") or {}, f"{path}.volumeClaimTemplate.spec")


def validate_nfs(source: Object, path: str) -> Iterator[Cause]:
    if not source.get("server"):
        yield required(f"{path}.server")
    if not source.get("path"):
        yield required(f"{path}.path")
    if not (source.get("path") or "").startswith("/"):
        yield invalid(f"{path}.path", source.get("path") or "", "must be an absolute path")


def _validate_image(source: Object, path: str) -> Iterator[Cause]:
    if not source.get("reference"):
        yield required(f"{path}.reference")
    if source.get("pullPolicy") not in ("Always", "IfNotPresent", "Never"):
        yield not_supported(f"{path}.pullPolicy", source.get("pullPolicy"), ("Always", "IfNotPresent", "Never"))


_CHECKS: Final[dict[str, Callable[[Object, str], Iterator[Cause]]]] = {
    "emptyDir": _validate_empty_dir,
    "hostPath": validate_host_path,
    "secret": _validate_files("secretName"),
    "configMap": _validate_files("name"),
    "downwardAPI": _validate_downward,
    "projected": _validate_projected,
    "persistentVolumeClaim": _validate_claim,
    "ephemeral": _validate_ephemeral,
    "nfs": validate_nfs,
    "image": _validate_image,
}
