"""PersistentVolumeClaims of a sandbox: created once from its templates, never changed, kept while it is suspended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sandpool.api.kinds import PERSISTENT_VOLUME_CLAIM, SANDBOX
from sandpool.api.names import volume_claim_name
from sandpool.api.resource import Object, SharedObject
from sandpool.api.views import SandboxView, VolumeClaimView, adopted_by, controller_reference
from sandpool.controllers.sandbox.ownership import precondition, refusal, tracking_labels
from sandpool.controllers.writer import Create, Patch


@dataclass(frozen=True, slots=True)
class VolumesPlan:
    """Writes in the order of the templates. A failure ends the step, whether found while planning or returned by a
    write, so that later ones do not hide it. A Create answered by 409 AlreadyExists means a claim that the cache did
    not show: plan again with it."""

    writes: tuple[Create | Patch, ...] = ()
    error: str = ""


def volume_claim_names(sandbox: SandboxView) -> list[str]:
    return [volume_claim_name(_name(template), sandbox.name) for template in sandbox.volume_claim_templates]


def plan_volumes(sandbox: SandboxView, existing: Mapping[str, VolumeClaimView]) -> VolumesPlan:
    """``existing`` has the PersistentVolumeClaims with one of these names in the namespace of the sandbox."""
    writes: list[Create | Patch] = []
    for template in sandbox.volume_claim_templates:
        name = volume_claim_name(_name(template), sandbox.name)
        found = existing.get(name)
        if found is None:
            writes.append(Create(PERSISTENT_VOLUME_CLAIM, _from_template(template, name, sandbox)))
        elif error := refusal("PVC", found, sandbox):
            return VolumesPlan(tuple(writes), error)
        elif found.owner is None:
            body = {"metadata": {**precondition(found), "ownerReferences": adopted_by(found, SANDBOX, sandbox)}}
            writes.append(Patch(PERSISTENT_VOLUME_CLAIM, name, body))
    return VolumesPlan(tuple(writes))


def pod_volumes(sandbox: SandboxView) -> list[Object]:
    """The volumes of the pod that refer to the claims."""
    return [
        {"name": name, "persistentVolumeClaim": {"claimName": volume_claim_name(name, sandbox.name)}}
        for name in map(_name, sandbox.volume_claim_templates)
    ]


def _name(template: SharedObject) -> str:
    name: str = (template.get("metadata") or {}).get("name") or ""
    return name


def _from_template(template: SharedObject, name: str, sandbox: SandboxView) -> Object:
    given = template.get("metadata") or {}
    metadata: Object = {
        "name": name,
        "namespace": sandbox.namespace,
        "labels": {**(given.get("labels") or {}), **tracking_labels(sandbox)},
        "ownerReferences": [controller_reference(SANDBOX, sandbox)],
    }
    if annotations := given.get("annotations"):
        metadata["annotations"] = annotations
    return {
        "apiVersion": PERSISTENT_VOLUME_CLAIM.api_version,
        "kind": PERSISTENT_VOLUME_CLAIM.kind,
        "metadata": metadata,
        "spec": template.get("spec") or {},
    }
