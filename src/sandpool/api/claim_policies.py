"""Which policy of a template refuses what a claim adds to its sandbox, and the value that allows it.

The conditions of a refused claim have the texts of the reference, which name no field."""

from __future__ import annotations

from collections.abc import Iterator

from sandpool.api.resource import SharedObject
from sandpool.api.template import ALLOWED, OVERRIDES
from sandpool.api.views import ClaimView, TemplateView


def policy_advice(claim: ClaimView, template: TemplateView) -> str:
    """Return the change of the template with which it allows the variables and volumes of a claim; empty if it allows
    them."""
    changes: list[str] = []
    if claim.env:
        given = template.env_vars_injection_policy
        changes += _change("envVarsInjectionPolicy", given, _replaces_variables(claim, template))
    if claim.volume_claim_templates:
        known = {_name(each["metadata"]) for each in template.volume_claim_templates}
        replaces = any(_name(each.get("metadata") or {}) in known for each in claim.volume_claim_templates)
        changes += _change("volumeClaimTemplatesPolicy", template.volume_claim_templates_policy, replaces)
    return f'set {" and ".join(changes)} in template "{template.name}"' if changes else ""


def _change(field: str, policy: str, replaces: bool) -> Iterator[str]:
    needed = (OVERRIDES,) if replaces else (ALLOWED, OVERRIDES)
    if policy not in needed:
        yield f"{field} to {' or '.join(needed)}"


def _replaces_variables(claim: ClaimView, template: TemplateView) -> bool:
    """Whether a variable of the claim replaces one of the template. What ``envFrom`` brings is unknown, so it may."""
    spec = template.pod_template.get("spec") or {}
    containers: list[SharedObject] = list(spec.get("containers") or [])
    first = _name(containers[0]) if containers else ""
    for container in (*(spec.get("initContainers") or []), *containers):
        names = {_name(each) for each in claim.env if (each.get("containerName") or first) == _name(container)}
        known = {_name(each) for each in container.get("env") or []}
        if names & known or (names and container.get("envFrom")):
            return True
    return False


def _name(named: SharedObject) -> str:
    name: str = named.get("name") or ""
    return name
