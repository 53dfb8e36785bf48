"""Validation of CustomResourceDefinitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sandpool.api.causes import Cause, duplicate, forbidden, immutable, invalid, not_supported, required, too_many
from sandpool.api.resource import Object
from sandpool.api.schema.rules import RulesUnsupported, compile_rules
from sandpool.api.schema.shape import from_openapi
from sandpool.server import names
from sandpool.server.kinds.structural_schema import validate_schema

_APPROVAL: Final = "api-approved.kubernetes.io"
_APPROVAL_MISSING: Final = (
    f'protected groups must have approval annotation "{_APPROVAL}", '
    "see https://github.com/kubernetes/enhancements/pull/1111"
)
_SCOPES: Final = ("Cluster", "Namespaced")
_COLUMN_TYPES: Final = ("boolean", "date", "integer", "number", "string")
_COLUMN_FORMATS: Final = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")
_MOST_SELECTABLE: Final = 8


def validate_definition(definition: Object, old: Object | None, *, established: bool) -> Iterator[Cause]:
    """Validate a definition. ``established``: its kind is being served, so its names are fixed."""
    spec, name = definition["spec"], definition["metadata"].get("name") or ""
    given, group = spec.get("names") or {}, spec.get("group") or ""
    if old is None and name != f"{given.get('plural') or ''}.{group}":
        yield invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group')
    yield from _validate_group(group)
    scope = spec.get("scope") or ""
    if not scope:
        yield required("spec.scope")
    elif scope not in _SCOPES:
        yield not_supported("spec.scope", scope, _SCOPES)
    yield from _validate_versions(spec)
    yield from _validate_names(given)
    yield from _validate_conversion(spec.get("conversion") or {})
    if spec.get("preserveUnknownFields"):
        why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        yield invalid("spec.preserveUnknownFields", True, why)
    if old is not None:
        yield from _validate_change(spec, old["spec"], established)
    yield from _validate_stored_versions(definition)
    yield from _validate_approval(definition, old)


def _validate_group(group: str) -> Iterator[Cause]:
    if not group:
        yield required("spec.group")
    elif wrong := names.subdomain(group):
        yield invalid("spec.group", group, ",".join(wrong))
    elif "." not in group:
        yield invalid("spec.group", group, "should be a domain with at least one dot")


def _validate_versions(spec: Object) -> Iterator[Cause]:
    versions = spec.get("versions") or []
    for index, version in enumerate(versions):
        if (version.get("schema") or {}).get("openAPIV3Schema") is None:
            yield required(f"spec.versions[{index}].schema.openAPIV3Schema")
    for index, version in enumerate(versions):
        at, name = f"spec.versions[{index}]", version.get("name") or ""
        if wrong := names.dns_1035_label(name):
            yield invalid(f"{at}.name", name, ",".join(wrong))
            if index == 0:
                yield invalid("spec.version", name, ",".join(wrong))
        yield from _validate_warning(version, f"{at}.deprecationWarning")
    for version, at in _versions_with_path(versions, "schema", "validation"):
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if schema is not None:
            yield from list(validate_schema(schema, f"{at}.openAPIV3Schema")) or _validate_rules(schema, at)
    for version, at in _versions_with_path(versions, "subresources"):
        yield from _validate_scale((version.get("subresources") or {}).get("scale"), at)
    for version, at in _versions_with_path(versions, "additionalPrinterColumns"):
        for position, column in enumerate(version.get("additionalPrinterColumns") or ()):
            yield from _validate_column(column, f"{at}[{position}]")
    for version, at in _versions_with_path(versions, "selectableFields"):
        schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
        yield from _validate_selectable(version.get("selectableFields") or [], schema, at)
    if len({version.get("name") for version in versions}) != len(versions):
        yield invalid("spec.versions", versions, "must contain unique version names")
    if sum(bool(version.get("storage")) for version in versions) != 1:
        yield invalid("spec.versions", versions or None, "must have exactly one version marked as storage version")


def _versions_with_path(versions: list[Object], field: str, shared: str = "") -> Iterator[tuple[Object, str]]:
    """Versions, each with the path of one of its fields.

    A field that is the same in all versions is reported once, at the path it had when a definition could have only
    one version. kube-apiserver does the same.
    """
    if versions and all(version.get(field) == versions[0].get(field) for version in versions):
        yield versions[0], f"spec.{shared or field}"
    else:
        yield from ((version, f"spec.versions[{index}].{field}") for index, version in enumerate(versions))


def _validate_warning(version: Object, path: str) -> Iterator[Cause]:
    warning = version.get("deprecationWarning")
    if warning is None:
        return
    if not version.get("deprecated"):
        yield invalid(path, warning, "can only be set for deprecated versions")
        return
    if len(warning) > 256:
        yield invalid(path, warning, "must be <= 256 characters long")
    if not warning:
        yield invalid(path, warning, "must not be an empty string")


def _validate_rules(schema: Object, path: str) -> Iterator[Cause]:
    """Refuse x-kubernetes-validations that cannot be evaluated, before any object depends on them."""
    try:
        compile_rules(from_openapi(schema))
    except RulesUnsupported as error:
        yield invalid(f"{path}.openAPIV3Schema", str(error), "cannot be evaluated")


def _validate_scale(scale: Object | None, path: str) -> Iterator[Cause]:
    if scale is None:
        return
    for field, roots, needed in (
        ("specReplicasPath", (".spec.",), True),
        ("statusReplicasPath", (".status.",), True),
        ("labelSelectorPath", (".spec.", ".status."), False),
    ):
        at, value = f"{path}.scale.{field}", scale.get(field) or ""
        if not value:
            if needed:
                yield required(at)
        elif not value.startswith("."):
            yield invalid(at, value, "must be a simple json path starting with .")
        elif not value.startswith(roots):
            where = ".spec" if roots == (".spec.",) else ".status" if needed else "either .spec or .status"
            yield invalid(at, value, f"should be a json path under {where}")


def _validate_column(column: Object, path: str) -> Iterator[Cause]:
    if not column.get("name"):
        yield required(f"{path}.name")
    kind = column.get("type") or ""
    types = f"must be one of {','.join(_COLUMN_TYPES)}"
    if not kind:
        yield required(f"{path}.type", types)
    elif kind not in _COLUMN_TYPES:
        yield invalid(f"{path}.type", kind, types)
    if column.get("format") and column["format"] not in _COLUMN_FORMATS:
        yield invalid(f"{path}.format", column["format"], f"must be one of {','.join(_COLUMN_FORMATS)}")
    target = column.get("jsonPath") or ""
    if not target:
        yield required(f"{path}.JSONPath")
    elif not target.startswith("."):
        yield invalid(f"{path}.JSONPath", target, "must be a simple json path starting with .")


def _validate_selectable(fields: list[Object], schema: Object, path: str) -> Iterator[Cause]:
    seen: set[str] = set()
    for index, field in enumerate(fields):
        at, target = f"{path}[{index}].jsonPath", field.get("jsonPath") or ""
        if not target:
            yield required(at)
            continue
        steps = target.removeprefix(".").split(".")
        found = _schema_at(schema, steps)
        if found is None or not target.startswith("."):
            yield invalid(at, target, "is an invalid path: does not refer to a valid field")
            continue
        if steps[0] == "metadata":
            yield invalid(at, target, "must not point to fields in metadata")
        if found.get("type") not in ("string", "boolean", "integer"):
            why = (
                "must point to a field of type string, boolean or integer. "
                "Enum string fields and strings with formats are allowed."
            )
            yield invalid(at, target, why)
        if target in seen:
            yield duplicate(at, target)
        seen.add(target)
    if len(seen) > _MOST_SELECTABLE:
        yield too_many(path, len(seen), _MOST_SELECTABLE)


def _schema_at(schema: Any, steps: list[str]) -> Object | None:
    for step in steps:
        schema = (schema.get("properties") or {}).get(step) if isinstance(schema, dict) else None
    return schema if isinstance(schema, dict) else None


def _validate_names(given: Object) -> Iterator[Cause]:
    for field in ("plural", "singular", "kind", "listKind"):
        if not given.get(field):
            yield required(f"spec.names.{field}")
    for field, mixed in (("plural", False), ("singular", False), ("kind", True), ("listKind", True)):
        value = given.get(field) or ""
        if value and (wrong := names.dns_1035_label(value.lower() if mixed else value)):
            prefix = "may have mixed case, but should otherwise match: " if mixed else ""
            yield invalid(f"spec.names.{field}", value, prefix + ",".join(wrong))
    for field in ("shortNames", "categories"):
        for index, value in enumerate(given.get(field) or ()):
            if wrong := names.dns_1035_label(value):
                yield invalid(f"spec.names.{field}[{index}]", value, ",".join(wrong))
    if given.get("kind") and given["kind"] == given.get("listKind"):
        yield invalid("spec.names.listKind", given["listKind"], "kind and listKind may not be the same")


def _validate_conversion(conversion: Object) -> Iterator[Cause]:
    strategy = conversion.get("strategy") or ""
    if strategy == "Webhook":
        # This server calls no webhooks. Refusing the definition beats failing on every read.
        why = "conversion webhooks are not supported by this server; versions may differ in name only (strategy None)"
        yield forbidden("spec.conversion.strategy", why)
    elif strategy != "None":
        yield not_supported("spec.conversion.strategy", strategy, ("None", "Webhook"))
    elif conversion.get("webhook") is not None:
        yield forbidden("spec.conversion.webhookClientConfig", "should not be set when strategy is not set to Webhook")


def _validate_change(spec: Object, before: Object, established: bool) -> Iterator[Cause]:
    given, taken = spec.get("names") or {}, before.get("names") or {}
    if established:
        if spec.get("scope") != before.get("scope"):
            yield immutable("spec.scope", spec.get("scope"))
        if given.get("kind") != taken.get("kind"):
            yield immutable("spec.names.kind", given.get("kind"))
    if spec.get("group") != before.get("group"):
        yield immutable("spec.group", spec.get("group"))
    if given.get("plural") != taken.get("plural"):
        yield immutable("spec.names.plural", given.get("plural"))


def _validate_stored_versions(definition: Object) -> Iterator[Cause]:
    stored = (definition.get("status") or {}).get("storedVersions") or []
    known = {version.get("name") for version in definition["spec"].get("versions") or ()}
    if not stored:
        yield invalid("status.storedVersions", None, "must have at least one stored version")
        return
    for version in definition["spec"].get("versions") or ():
        if version.get("storage") and version.get("name") not in stored:
            yield invalid("status.storedVersions", stored, f"must have the storage version {version.get('name')}")
    for index, version in enumerate(stored):
        if version not in known:
            why = (
                f"missing from spec.versions; {version} was previously a storage version, and must remain in "
                f"spec.versions until a storage migration ensures no data remains persisted in {version} and removes "
                f"{version} from status.storedVersions"
            )
            yield invalid(f"status.storedVersions[{index}]", version, why)


def _validate_approval(definition: Object, old: Object | None) -> Iterator[Cause]:
    """Require the approval annotation for groups that are reserved for the Kubernetes community."""
    group = definition["spec"].get("group") or ""
    if not (group in ("k8s.io", "kubernetes.io") or group.endswith((".k8s.io", ".kubernetes.io"))):
        return
    approval = (definition["metadata"].get("annotations") or {}).get(_APPROVAL, "")
    if old is not None and approval == (old["metadata"].get("annotations") or {}).get(_APPROVAL, ""):
        return
    if not approval:
        yield required(f"metadata.annotations[{_APPROVAL}]", _APPROVAL_MISSING)
    elif not approval.startswith(("unapproved", "https://", "http://")):
        why = (
            f'protected groups must have approval annotation "{_APPROVAL}" with either a URL or a reason starting with '
            '"unapproved", see https://github.com/kubernetes/enhancements/pull/1111'
        )
        yield invalid(f"metadata.annotations[{_APPROVAL}]", approval, why)
