"""Namespace: removed after its content; the system namespaces cannot be deleted."""

from __future__ import annotations

from typing import Final

from sandpool.api.causes import Cause, invalid
from sandpool.api.kinds import NAMESPACE
from sandpool.api.resource import Object
from sandpool.kube.errors import forbidden
from sandpool.server import names
from sandpool.server.kinds.copy_on_write import drop, fill_absent, fill_empty, inside, keep, put
from sandpool.server.kinds.strategy import KindStrategy

#: The entry of ``spec.finalizers`` that the namespace controller removes when the namespace is empty.
FINALIZER: Final = "kubernetes"
NAME_LABEL: Final = "kubernetes.io/metadata.name"
_IMMORTAL: Final = frozenset({"default", "kube-system", "kube-public"})


class NamespaceStrategy(KindStrategy):
    name_format = "label"
    field_labels = frozenset({"status.phase"})
    metadata_labels = frozenset({"metadata.name"})

    def default(self, obj: Object, old: Object | None = None) -> Object:
        obj = fill_absent(obj, {"spec": {}, "status": {}})
        obj = inside(obj, "status", lambda status: fill_empty(status, {"phase": "Active"}))
        return _with_name_label(obj)

    def prepare_create(self, obj: Object) -> Object:
        finalizers = obj["spec"].get("finalizers") or []
        if FINALIZER not in finalizers:
            finalizers = [*finalizers, FINALIZER]
        return {
            **_with_name_label(obj),
            "spec": {**obj["spec"], "finalizers": finalizers},
            "status": {"phase": "Active"},
        }

    def prepare_update(self, new: Object, old: Object) -> Object:
        return inside(new, "spec", lambda spec: keep(spec, old.get("spec") or {}, "finalizers"))

    def validate(self, new: Object, old: Object | None) -> list[Cause]:
        if old is not None:
            return []
        return [
            invalid("spec.finalizers", name, why)
            for name in new["spec"].get("finalizers") or ()
            for why in _finalizer(name)
        ]

    def validate_status(self, new: Object, old: Object) -> list[Cause]:
        phase = (new.get("status") or {}).get("phase")
        deleting = bool(new["metadata"].get("deletionTimestamp"))
        if deleting and phase != "Terminating":
            return [invalid("status.Phase", phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")]
        if not deleting and phase != "Active":
            return [invalid("status.Phase", phase, "may only be 'Active' if `deletionTimestamp` is empty")]
        return []

    def check_delete(self, obj: Object) -> None:
        name = obj["metadata"]["name"]
        if name in _IMMORTAL:
            raise forbidden(NAMESPACE, name, "this namespace may not be deleted")

    def prepare_delete(self, obj: Object) -> Object:
        obj = inside(obj, "metadata", lambda metadata: drop(metadata, "deletionGracePeriodSeconds"))
        return {**obj, "status": {**(obj.get("status") or {}), "phase": "Terminating"}}

    def blocks_removal(self, obj: Object) -> bool:
        return bool((obj.get("spec") or {}).get("finalizers"))

    def selectable_fields(self, obj: Object) -> dict[str, str]:
        return {"status.phase": (obj.get("status") or {}).get("phase", "")}


def _with_name_label(obj: Object) -> Object:
    """Set the label ``kubernetes.io/metadata.name``, by which selectors find a namespace."""
    name = obj["metadata"].get("name")
    if not name or (obj["metadata"].get("labels") or {}).get(NAME_LABEL) == name:
        return obj
    labels = {**(obj["metadata"].get("labels") or {}), NAME_LABEL: name}
    return put(obj, "metadata", {**obj["metadata"], "labels": labels})


def _finalizer(name: str) -> list[str]:
    wrong = names.qualified_name(name)
    if "/" not in name and name not in ("kubernetes", "orphan", "foregroundDeletion"):
        wrong.append("name is neither a standard finalizer name nor is it fully qualified")
    return wrong
