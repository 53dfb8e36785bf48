"""CustomResourceDefinition: the kind that defines kinds."""

from __future__ import annotations

from typing import Final

from sandpool.api.causes import Cause
from sandpool.api.resource import Object
from sandpool.server.kinds.copy_on_write import fill_absent, fill_empty, inside, put
from sandpool.server.kinds.crd_validation import validate_definition
from sandpool.server.kinds.strategy import KindStrategy

#: Keeps a definition until all objects of its kind are gone.
FINALIZER: Final = "customresourcecleanup.apiextensions.k8s.io"


def set_condition(status: Object, type: str, state: bool, reason: str, message: str, now: str) -> Object:
    """Return the status with a condition set; the same status if it has it already."""
    conditions: list[Object] = status.get("conditions") or []
    was = next((condition for condition in conditions if condition.get("type") == type), None)
    word = "True" if state else "False"
    since = was["lastTransitionTime"] if was is not None and was["status"] == word else now
    made = {"type": type, "status": word, "lastTransitionTime": since, "reason": reason, "message": message}
    if was is None:
        return {**status, "conditions": [*conditions, made]}
    return put(status, "conditions", [made if condition is was else condition for condition in conditions])


def has_condition(definition: Object, type: str) -> bool:
    conditions = (definition.get("status") or {}).get("conditions") or ()
    return any(condition.get("type") == type and condition.get("status") == "True" for condition in conditions)


class CustomResourceDefinitionStrategy(KindStrategy):
    spec_generation = True
    allow_unconditional_update = False

    def default(self, obj: Object, old: Object | None = None) -> Object:
        obj = fill_absent(obj, {"spec": {}})
        return obj if old is not None and obj["spec"] is old.get("spec") else inside(obj, "spec", _default_spec)

    def prepare_create(self, obj: Object) -> Object:
        status = {"conditions": None, "acceptedNames": {"plural": "", "kind": ""}}
        return {**obj, "status": _with_storage_version(status, obj["spec"])}

    def prepare_update(self, new: Object, old: Object) -> Object:
        return inside(new, "status", lambda status: _with_storage_version(status, new["spec"]))

    def prepare_delete(self, obj: Object) -> Object:
        metadata = obj["metadata"]
        finalizers = metadata.get("finalizers") or []
        if FINALIZER not in finalizers:
            metadata = {**metadata, "finalizers": [*finalizers, FINALIZER]}
        message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"
        status = set_condition(
            obj.get("status") or {},
            "Terminating",
            True,
            "InstanceDeletionPending",
            message,
            metadata["deletionTimestamp"],
        )
        return {**obj, "metadata": metadata, "status": status}

    def blocks_removal(self, obj: Object) -> bool:
        # The first delete only sets deletionTimestamp. The CRD controller then looks for objects of the kind.
        return not obj["metadata"].get("deletionTimestamp")

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        if old is not None and new["spec"] is old["spec"]:
            return []
        return list(validate_definition(new, old, established=old is not None and has_condition(old, "Established")))


def _default_spec(spec: Object) -> Object:
    spec = fill_absent(spec, {"conversion": {"strategy": "None"}, "names": {}})
    kind = spec["names"].get("kind") or ""
    if kind:
        spec = inside(
            spec, "names", lambda given: fill_empty(given, {"singular": kind.lower(), "listKind": f"{kind}List"})
        )
    return spec


def _with_storage_version(status: Object, spec: Object) -> Object:
    """Add the storage version to ``storedVersions``. Only a storage migration removes versions from it."""
    stored = status.get("storedVersions") or []
    storage = [version.get("name") for version in spec.get("versions") or () if version.get("storage")][:1]
    return status if not storage or storage[0] in stored else {**status, "storedVersions": [*stored, *storage]}
