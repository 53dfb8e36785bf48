"""What a sandbox is made of: the part of the schema that Sandbox and SandboxTemplate share."""

from __future__ import annotations

from typing import Literal

from sandpool.api.schema.fields import Schema, flag, kubernetes_type, metadata, sequence, structure

# "full" knows every field of a pod. "lean" takes a pod's spec as it is: a fraction of the size and of the cost of a
# write on a real API server, for clusters where that counts more than early errors.
Profile = Literal["full", "lean"]


def pod_spec(profile: Profile) -> Schema:
    return _outline() if profile == "lean" else kubernetes_type("io.k8s.api.core.v1.PodSpec")


def _outline() -> Schema:
    """Lists of objects where our controllers take it for granted that there are such, and anything everywhere else.
    What else is wrong with a pod its API says when the pod is made."""
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
                "description": "What is claimed.",
            },
        },
        ["spec"],
    )
    return sequence(description, template, **{"x-kubernetes-list-type": "atomic"})


def sandbox_spec_properties(profile: Profile) -> dict[str, Schema]:
    """The properties; ``podTemplate`` is required."""
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
            "Whether the sandbox has a headless Service of its name. Unset: one that is there is kept, none is made."
        ),
    }
