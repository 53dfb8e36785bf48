"""Building blocks for the schemas of the agent-sandbox kinds.

Everything is plain OpenAPI, as a CustomResourceDefinition holds it. The parts that belong to Kubernetes (a pod's spec,
a volume claim's spec) are taken from the built-in definitions with ``kubernetes_type`` and look in a CRD as they do
when Go types are turned into one: no enums, only the defaults that are declared as such, everything written out.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from sandpool.api.schema import core

Schema = dict[str, Any]

QUANTITY_PATTERN: Final = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_INT_OR_STRING: Final[Schema] = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
}
LABELS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}


def text(description: str, **more: Any) -> Schema:
    return {"type": "string", "description": description, **more}


def choice(description: str, *values: str, default: str) -> Schema:
    return {"type": "string", "description": description, "enum": list(values), "default": default}


def number(description: str, number_format: str = "int32", **more: Any) -> Schema:
    return {"type": "integer", "format": number_format, "description": description, **more}


def flag(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def moment(description: str) -> Schema:
    return {"type": "string", "format": "date-time", "description": description}


def amount_or_percentage(description: str) -> Schema:
    return {**_INT_OR_STRING, "description": description, "pattern": "^[0-9]+%$", "minimum": 0}


def structure(description: str, properties: dict[str, Schema], required: Iterable[str] = ()) -> Schema:
    schema: Schema = {"type": "object", "description": description, "properties": properties}
    if listed := list(required):
        schema["required"] = listed
    return schema


def sequence(description: str, items: Schema, **more: Any) -> Schema:
    return {"type": "array", "description": description, "items": items, **more}


def metadata(description: str, *, named: bool = False) -> Schema:
    """The part of an object's metadata that a template of it may set."""
    properties = {"annotations": LABELS, "labels": LABELS}
    if named:
        properties["name"] = {"type": "string"}
    return structure(description, properties)


def conditions(description: str) -> Schema:
    """A list of ``metav1.Condition``. It is atomic: a writer replaces all of it."""
    pattern = (
        r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])"
    )
    condition = structure(
        "One aspect of the object's state.",
        {
            "lastTransitionTime": moment("When the status last changed."),
            "message": text("The state in words.", maxLength=32768),
            "observedGeneration": number("The generation of the object this is about.", "int64", minimum=0),
            "reason": text(
                "The state in one word for programs.",
                maxLength=1024,
                minLength=1,
                pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
            ),
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "type": text("Which aspect.", maxLength=316, pattern=f"^{pattern}$"),
        },
        ["lastTransitionTime", "message", "reason", "status", "type"],
    )
    return sequence(description, condition)


def resource(description: str, spec: Schema, status: Schema | None = None) -> Schema:
    """A whole object."""
    properties: dict[str, Schema] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": spec,
    }
    if status is not None:
        properties["status"] = status
    return structure(description, properties, ["spec"])


# --- what belongs to Kubernetes ----------------------------------------------------------------------------------


# Declared with a reference to a constant, which tools that make CRDs do not follow.
_NO_DEFAULT_IN_CRDS: Final = {
    ("io.k8s.api.core.v1.AzureDiskVolumeSource", "cachingMode"),
    ("io.k8s.api.core.v1.AzureDiskVolumeSource", "kind"),
    ("io.k8s.api.core.v1.ResourceFieldSelector", "divisor"),
}
_KEPT: Final = (
    "type",
    "format",
    "required",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
)


@cache
def kubernetes_type(name: str) -> Schema:
    """The schema of a built-in definition (``io.k8s.api.core.v1.PodSpec``), everything written out in place."""
    if name == core.OBJECT_META:
        return metadata("Labels and annotations.")
    return _written_out(name, core.schemas()[name])


def _written_out(name: str, schema: Any) -> Schema:
    if "$ref" in schema:
        return {**kubernetes_type(schema["$ref"]), **{key: schema[key] for key in _KEPT if key in schema}}
    if schema.get("format") == "quantity":
        return {**_INT_OR_STRING, "pattern": QUANTITY_PATTERN}
    if schema.get("x-kubernetes-int-or-string"):
        return _INT_OR_STRING
    result: Schema = {key: schema[key] for key in _KEPT if key in schema}
    if "properties" in schema:
        result["properties"] = {
            key: _with_default(name, key, each, _written_out(name, each)) for key, each in schema["properties"].items()
        }
    for key in ("items", "additionalProperties"):
        if key in schema:
            result[key] = _written_out(name, schema[key])
    return result


def _with_default(definition: str, name: str, field: Any, schema: Schema) -> Schema:
    """Keep declared defaults. Drop the zero values that Go writes for fields without ``omitempty``."""
    default = field.get("default")
    declared = default not in (None, {}) and (bool(default) or "x-zero" in field)
    if not declared or (definition, name) in _NO_DEFAULT_IN_CRDS:
        return schema
    return {**schema, "default": default}
