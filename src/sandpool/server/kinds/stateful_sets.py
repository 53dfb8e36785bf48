"""StatefulSet: pods that keep their names and their storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

from sandpool.api.causes import Cause, forbidden, invalid, not_supported
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.copy_on_write import drop, each, fill_absent, fill_empty, inside, keep, put
from sandpool.server.kinds.persistent_volume_claims import default_claim_spec, validate_claim_spec
from sandpool.server.kinds.workloads import (
    NOT_NEGATIVE,
    WorkloadStrategy,
    invalid_selector,
    is_valid_selector,
    validate_counts,
    validate_restart_always,
    validate_selected,
    validate_selector,
    validate_template,
)

_MAY_CHANGE: Final = (
    "replicas",
    "template",
    "updateStrategy",
    "minReadySeconds",
    "ordinals",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
)


class StatefulSetStrategy(WorkloadStrategy):
    name_format = "label"
    defaults: ClassVar[Object] = {
        "podManagementPolicy": "OrderedReady",
        "updateStrategy": {},
        "persistentVolumeClaimRetentionPolicy": {},
        "replicas": 1,
        "revisionHistoryLimit": 10,
    }
    status: ClassVar[Object] = {"replicas": 0, "availableReplicas": 0}
    parts: ClassVar[Mapping[str, str]] = {
        "readyReplicas": "",
        "currentReplicas": "",
        "updatedReplicas": "",
        "availableReplicas": "status.readyReplicas",
    }

    def default_spec(self, spec: Object) -> Object:
        spec = inside(super().default_spec(spec), "updateStrategy", _default_strategy)
        retain = {"whenDeleted": "Retain", "whenScaled": "Retain"}
        spec = inside(spec, "persistentVolumeClaimRetentionPolicy", lambda policy: fill_empty(policy, retain))
        return inside(spec, "volumeClaimTemplates", lambda templates: each(templates, _default_claim_template))

    def validate_spec(self, spec: Object, before: Object | None) -> Iterator[Cause]:
        policy = spec["podManagementPolicy"]
        if policy not in ("OrderedReady", "Parallel"):
            yield invalid("spec.podManagementPolicy", policy, "must be 'OrderedReady' or 'Parallel'")
        yield from _validate_strategy(spec["updateStrategy"], "spec.updateStrategy")
        for field, choice in spec["persistentVolumeClaimRetentionPolicy"].items():
            if choice not in ("Retain", "Delete"):
                path = f"spec.persistentVolumeClaimRetentionPolicy.{field}"
                yield not_supported(path, choice, ("Retain", "Delete"))
        if before is None:
            yield from _validate_fixed(spec)
        yield from validate_counts(spec, "replicas", "minReadySeconds")
        start = (spec.get("ordinals") or {}).get("start") or 0
        if start < 0:
            yield invalid("spec.ordinals.start", start, NOT_NEGATIVE)
        selector, template = spec.get("selector"), spec["template"]
        yield from validate_selector(selector, "statefulset")
        if is_valid_selector(selector):
            yield from validate_selected(template, selector)
            yield from validate_template(_with_claims(template, spec.get("volumeClaimTemplates") or []))
        else:
            yield invalid_selector(selector)
        yield from validate_restart_always(template, "StatefulSet")

    def validate_change(self, spec: Object, before: Object) -> Iterator[Cause]:
        if keep(spec, before, *_MAY_CHANGE) != before:
            why = (
                "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "
                "'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and "
                "'minReadySeconds' are forbidden"
            )
            yield forbidden("spec", why)


def _validate_fixed(spec: Object) -> Iterator[Cause]:
    """Validate immutable fields; needed on create only."""
    for index, claim in enumerate(spec.get("volumeClaimTemplates") or ()):
        yield from validate_claim_spec(claim.get("spec") or {}, f"spec.volumeClaimTemplates[{index}].spec")
    if service := spec.get("serviceName"):
        yield from (invalid("spec.serviceName", service, why) for why in names.label(service))


def _default_strategy(strategy: Object) -> Object:
    if not strategy.get("type"):
        strategy = {"rollingUpdate": {}, **strategy, "type": "RollingUpdate"}
    if strategy["type"] != "RollingUpdate":
        return strategy
    return inside(strategy, "rollingUpdate", lambda update: fill_absent(update, {"partition": 0}))


def _validate_strategy(strategy: Object, path: str) -> Iterator[Cause]:
    update = strategy.get("rollingUpdate") or {}
    if strategy["type"] == "RollingUpdate":
        if (update.get("partition") or 0) < 0:
            yield invalid(f"{path}.rollingUpdate.partition", update["partition"], NOT_NEGATIVE)
    elif strategy["type"] != "OnDelete":
        yield invalid(path, strategy, "must be 'RollingUpdate' or 'OnDelete'")
    elif "rollingUpdate" in strategy:
        yield invalid(f"{path}.rollingUpdate", update, "only allowed for updateStrategy 'RollingUpdate'")


def _default_claim_template(claim: Object) -> Object:
    claim = put(put(claim, "kind", "PersistentVolumeClaim"), "apiVersion", "v1")
    claim = fill_absent(claim, {"metadata": {}, "spec": {}, "status": {}})
    claim = inside(claim, "status", lambda status: fill_empty(status, {"phase": "Pending"}))
    return inside(claim, "spec", default_claim_spec)


def _with_claims(template: Object, claims: list[Object]) -> Object:
    """The template as the controller would use it: with a volume for every claim template and a hostname."""
    names_of_claims = [(claim.get("metadata") or {}).get("name") for claim in claims]
    added = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names_of_claims]
    spec = drop(template.get("spec") or {}, "hostname", "subdomain")
    others = [volume for volume in spec.get("volumes") or () if volume.get("name") not in names_of_claims]
    return {**template, "spec": {**spec, "volumes": [*added, *others]}}
