"""StatefulSet: pods that keep their names and their storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Final

from sandpool.api.causes import Cause, forbidden, invalid, not_supported
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.claims import default_claim_spec, validate_claim_spec
from sandpool.server.kinds.cow import drop, each, fill_absent, fill_empty, inside, keep, put
from sandpool.server.kinds.workloads import (
    NOT_NEGATIVE,
    WorkloadRules,
    validate_counts,
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


class StatefulSetRules(WorkloadRules):
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
        spec = inside(super().default_spec(spec), "updateStrategy", _default_stateful_strategy)
        retain = {"whenDeleted": "Retain", "whenScaled": "Retain"}
        spec = inside(spec, "persistentVolumeClaimRetentionPolicy", lambda policy: fill_empty(policy, retain))
        return inside(spec, "volumeClaimTemplates", lambda templates: each(templates, _default_claim_template))

    def validate_spec(self, spec: Object) -> Iterator[Cause]:
        policy = spec["podManagementPolicy"]
        if policy not in ("OrderedReady", "Parallel"):
            yield invalid("spec.podManagementPolicy", policy, "must be 'OrderedReady' or 'Parallel'")
        yield from _validate_stateful_strategy(spec["updateStrategy"], "spec.updateStrategy")
        for field, choice in spec["persistentVolumeClaimRetentionPolicy"].items():
            if choice not in ("Retain", "Delete"):
                path = f"spec.persistentVolumeClaimRetentionPolicy.{field}"
                yield not_supported(path, choice, ("Retain", "Delete"))
        claims = spec.get("volumeClaimTemplates") or []
        for index, claim in enumerate(claims):
            yield from validate_claim_spec(claim.get("spec") or {}, f"spec.volumeClaimTemplates[{index}].spec")
        yield from validate_counts(spec, "replicas", "minReadySeconds")
        if service := spec.get("serviceName"):
            yield from (invalid("spec.serviceName", service, why) for why in names.label(service))
        yield from validate_selector(spec.get("selector"), "statefulset")
        template = _with_claims(spec["template"], claims)
        yield from validate_template(template, spec.get("selector"), "spec.template", "StatefulSet")

    def validate_change(self, spec: Object, before: Object) -> Iterator[Cause]:
        if keep(spec, before, *_MAY_CHANGE) != before:
            why = (
                "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "
                "'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and "
                "'minReadySeconds' are forbidden"
            )
            yield forbidden("spec", why)


def _default_stateful_strategy(strategy: Object) -> Object:
    if not strategy.get("type"):
        strategy = {"rollingUpdate": {}, **strategy, "type": "RollingUpdate"}
    if strategy["type"] != "RollingUpdate":
        return strategy
    return inside(strategy, "rollingUpdate", lambda update: fill_absent(update, {"partition": 0}))


def _validate_stateful_strategy(strategy: Object, path: str) -> Iterator[Cause]:
    update = strategy.get("rollingUpdate") or {}
    if strategy["type"] == "RollingUpdate":
        if (update.get("partition") or 0) < 0:
            yield invalid(f"{path}.rollingUpdate.partition", update["partition"], NOT_NEGATIVE)
    elif strategy["type"] != "OnDelete":
        yield invalid(path, strategy, "must be 'RollingUpdate' or 'OnDelete'")
    elif "rollingUpdate" in strategy:
        yield invalid(f"{path}.rollingUpdate", update, "only allowed for updateStrategy 'RollingUpdate'")


def _default_claim_template(claim: Object) -> Object:
    claim = fill_absent(claim, {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "metadata": {}, "spec": {}})
    return put(inside(claim, "spec", default_claim_spec), "status", {"phase": "Pending"})


def _with_claims(template: Object, claims: list[Object]) -> Object:
    """The template as its pods will be: with a volume for every claim, and names of their own."""
    names_of_claims = [(claim.get("metadata") or {}).get("name") for claim in claims]
    added = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names_of_claims]
    spec = drop(template.get("spec") or {}, "hostname", "subdomain")
    others = [volume for volume in spec.get("volumes") or () if volume.get("name") not in names_of_claims]
    return {**template, "spec": {**spec, "volumes": [*added, *others]}}
