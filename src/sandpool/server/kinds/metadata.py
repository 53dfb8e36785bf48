"""Object metadata: fields that only the server sets, and validation of the others."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from sandpool.api.causes import Cause, forbidden, immutable, invalid, quoted, required, too_long
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.apply.managers import managed_fields_causes
from sandpool.server.kinds.copy_on_write import drop, keep

ANNOTATIONS_LIMIT: Final = 256 * 1024

ORPHAN: Final = "orphan"
FOREGROUND: Final = "foregroundDeletion"
# Finalizers of built-in kinds that need no domain prefix.
_STANDARD_FINALIZERS: Final = frozenset({"kubernetes", ORPHAN, FOREGROUND})

# What clients may change.
_FREE: Final = ("labels", "annotations", "ownerReferences", "finalizers", "managedFields")
_IMMUTABLE: Final = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


def drop_system_fields(metadata: Object) -> Object:
    """Return the metadata of a new object without the fields that only the server may set."""
    return drop(
        metadata,
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "generation",
    )


def keep_system_fields(new: Object, old: Object) -> Object:
    """Restore the fields that no update may change. A wrong uid stays, for validation to report."""
    new = keep(new, old, "generation", "creationTimestamp")
    if "uid" not in new or not new["uid"]:
        new = keep(new, old, "uid")
    if old.get("deletionTimestamp"):
        new = keep(new, old, "deletionTimestamp")
        if new.get("deletionGracePeriodSeconds") is None:
            new = keep(new, old, "deletionGracePeriodSeconds")
    return new


def validate_metadata(
    new: Object,
    old: Object | None,
    *,
    namespaced: bool,
    name_format: str = "subdomain",
    custom: bool = False,
    sent: Object | None = None,
) -> list[Cause]:
    """Validate metadata. Values that an update leaves unchanged were validated when they were written.

    ``sent`` is the metadata before the server recorded the writer in managedFields. The entries are validated only if
    the request itself changed them: what the server records is valid, and every write changes it.
    """
    metadata: Object = new.get("metadata") or {}
    before: Object | None = (old.get("metadata") or {}) if old is not None else None
    if metadata is before:
        return []
    causes = _names(metadata, namespaced, name_format) if before is None else _unchanged(metadata, before)
    labels, annotations, references, finalizers, managers = map(metadata.get, _FREE)
    old_labels, old_annotations, old_references, old_finalizers, old_managers = map((before or {}).get, _FREE)
    if labels is not old_labels:
        causes += validate_labels(_changed(labels, old_labels), "metadata.labels")
    if annotations is not old_annotations:
        causes += validate_annotations(annotations or {}, "metadata.annotations", known=old_annotations or {})
    if references is not old_references:
        causes += _owner_references(references or [])
    if finalizers is not old_finalizers:
        causes += _finalizers(finalizers or [], custom)
    if sent is not None and "managedFields" in sent and sent["managedFields"] is not old_managers:
        causes += managed_fields_causes(managers)
    return causes


def _names(metadata: Object, namespaced: bool, name_format: str) -> list[Cause]:
    causes = []
    if prefix := metadata.get("generateName"):
        wrong = names.check_generate_name(prefix, name_format)
        causes += [invalid("metadata.generateName", prefix, why) for why in wrong]
    if name := metadata.get("name"):
        causes += [invalid("metadata.name", name, why) for why in names.check_name(name, name_format)]
    else:
        causes.append(required("metadata.name", "name or generateName is required"))
    namespace = metadata.get("namespace")
    if not namespaced:
        if namespace:
            causes.append(forbidden("metadata.namespace", "not allowed on this type"))
    elif namespace:
        causes += [invalid("metadata.namespace", namespace, why) for why in names.label(namespace)]
    else:
        causes.append(required("metadata.namespace"))
    return causes


def _unchanged(metadata: Object, before: Object) -> list[Cause]:
    if [*map(metadata.get, _IMMUTABLE)] == [*map(before.get, _IMMUTABLE)] and not before.get("deletionTimestamp"):
        return []
    causes = []
    if before.get("deletionTimestamp"):
        added = set(metadata.get("finalizers") or ()) - set(before.get("finalizers") or ())
        if added:
            listed = "[]string{" + ", ".join(map(quoted, sorted(added))) + "}"
            why = f"no new finalizers can be added if the object is being deleted, found new finalizers {listed}"
            causes.append(forbidden("metadata.finalizers", why))
    causes += [
        immutable(f"metadata.{field}", metadata.get(field))
        for field in _IMMUTABLE
        if metadata.get(field) != before.get(field)
    ]
    return causes


def _changed(after: Mapping[str, str] | None, before: Mapping[str, str] | None) -> Mapping[str, str]:
    """The entries that are new or have another value."""
    if not after or not before:
        return after or {}
    return {key: value for key, value in after.items() if key not in before or before[key] != value}


def validate_labels(labels: Mapping[str, str], field: str) -> list[Cause]:
    causes = []
    for key, value in labels.items():
        if names.is_label(key, value):
            continue
        causes += [invalid(field, key, why) for why in names.qualified_name(key)]
        causes += [invalid(field, value, why) for why in names.label_value(value)]
    return causes


def validate_annotations(
    annotations: Mapping[str, str], field: str, known: Mapping[str, str] = MappingProxyType({})
) -> list[Cause]:
    """Validate annotations. The keys of ``known`` were validated when they were written."""
    causes = [
        invalid(field, key, why) for key in annotations if key not in known for why in names.qualified_name(key.lower())
    ]
    text = "".join([*annotations, *annotations.values()])
    # Encoding takes time, and a character has at most four bytes.
    if len(text) > ANNOTATIONS_LIMIT // 4 and len(text.encode()) > ANNOTATIONS_LIMIT:
        causes.append(too_long(field, ANNOTATIONS_LIMIT))
    return causes


def _owner_references(references: list[Object]) -> list[Cause]:
    field = "metadata.ownerReferences"
    causes = []
    controller = ""
    for reference in references:
        if not reference.get("apiVersion", "").rpartition("/")[2]:
            causes.append(invalid(f"{field}.apiVersion", reference.get("apiVersion", ""), "version must not be empty"))
        causes += [
            invalid(f"{field}.{key}", "", "must not be empty")
            for key in ("kind", "name", "uid")
            if not reference.get(key)
        ]
        if (reference.get("apiVersion"), reference.get("kind")) == ("v1", "Event"):
            causes.append(invalid(field, reference, "/v1, Kind=Event is disallowed from being an owner"))
        if reference.get("controller"):
            this = f"{reference.get('kind')}/{reference.get('name')}"
            if controller:
                why = (
                    'Only one reference can have Controller set to true. Found "true" in references for '
                    f"{controller} and {this}"
                )
                causes.append(invalid(field, references, why))
            controller = controller or this
    return causes


def _finalizers(finalizers: list[str], custom: bool) -> list[Cause]:
    field = "metadata.finalizers"
    causes = [invalid(field, name, why) for name in finalizers for why in names.qualified_name(name)]
    if ORPHAN in finalizers and FOREGROUND in finalizers:
        causes.append(invalid(field, finalizers, f"finalizer {ORPHAN} and {FOREGROUND} cannot be both set"))
    if not custom:
        why = "name is neither a standard finalizer name nor is it fully qualified"
        causes += [
            invalid(f"{field}[{index}]", name, why)
            for index, name in enumerate(finalizers)
            if "/" not in name and name not in _STANDARD_FINALIZERS
        ]
    return causes
