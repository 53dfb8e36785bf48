"""The part of the spec that Sandbox and SandboxTemplate share: pod, volumes and Service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from sandpool.api.resource import SharedObject
from sandpool.api.schema.fields import Schema, flag, kubernetes_type, metadata, sequence, structure

# "full" validates every field of a pod spec. "lean" accepts almost any pod spec: the CRD is much smaller and writes
# cost the API server much less, for clusters where that matters more than early errors.
Profile = Literal["full", "lean"]


def pod_spec(profile: Profile) -> Schema:
    """The schema of a pod spec. Unlike the type of Kubernetes it requires a container: the API would refuse the pod."""
    schema = _outline() if profile == "lean" else kubernetes_type("io.k8s.api.core.v1.PodSpec")
    properties: dict[str, Schema] = schema["properties"]
    return {**schema, "properties": {**properties, "containers": {**properties["containers"], "minItems": 1}}}


def _outline() -> Schema:
    """A schema that requires lists of objects only where the controllers rely on them. The API reports all other errors
    when the pod is created."""
    container = _anything(ports=_list(_anything()), env=_list(_anything()))
    outline = _anything(containers=_list(container), initContainers=_list(container), volumes=_list(_anything()))
    return {**outline, "required": ["containers"]}


def _anything(**properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {**schema, "properties": properties} if properties else schema


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def volume_claim_templates(description: str) -> Schema:
    template = structure(
        "A claim for a volume; the sandbox name is appended to its name.",
        {
            "metadata": metadata("Name, labels and annotations of the claim.", named=True),
            "spec": {
                **kubernetes_type("io.k8s.api.core.v1.PersistentVolumeClaimSpec"),
                "description": "The spec of the claim.",
            },
        },
        ["spec"],
    )
    return sequence(description, template, **{"x-kubernetes-list-type": "atomic"})


def sandbox_spec_properties(profile: Profile) -> dict[str, Schema]:
    """The properties of the spec; ``podTemplate`` is required."""
    return {
        "podTemplate": structure(
            "The pod that runs the sandbox.",
            {
                "metadata": metadata("Labels and annotations of the pod."),
                "spec": {**pod_spec(profile), "description": "The spec of the pod, used as it is."},
            },
            ["spec"],
        ),
        "volumeClaimTemplates": volume_claim_templates(
            "Volumes that belong to the sandbox and outlive its pod. Each is mounted under the name of its template."
        ),
        "service": flag(
            "Whether the sandbox has a headless Service of its name. Unset: keep an existing Service, create none."
        ),
    }


def unmounted_volumes(pod_template: SharedObject, volume_claim_templates: Sequence[SharedObject]) -> tuple[str, ...]:
    """Names of the volumes of a Sandbox or SandboxTemplate that no container mounts."""
    pod = pod_template.get("spec") or {}
    used = {
        mount.get("name")
        for container in (*(pod.get("initContainers") or ()), *(pod.get("containers") or ()))
        for field in ("volumeMounts", "volumeDevices")
        for mount in _objects(container.get(field))
    }
    names = [volume.get("name") for volume in pod.get("volumes") or ()]
    names += [(volume.get("metadata") or {}).get("name") for volume in volume_claim_templates]
    return tuple(name for name in dict.fromkeys(names) if name and name not in used)


def _objects(value: Any) -> Iterator[SharedObject]:
    """The objects in a list whose schema is not checked in the profile "lean"."""
    return (each for each in (value if isinstance(value, list) else ()) if isinstance(each, dict))
