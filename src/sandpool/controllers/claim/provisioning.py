"""The Sandbox that is created for a claim when its pool has no suitable one.

It is the template's revision plus what the claim asks for: pod metadata, environment variables and volume claim
templates. The template's policies limit each of them; a violation raises ``ClaimError``.

**Pod metadata.** Labels decide which policies, Services and budgets select a pod. A claim may therefore only set labels
of the domains that the operator allows. Annotations select nothing and are free, except in domains that Kubernetes or
this project reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from sandpool.api import labels
from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.resource import Object, SharedObject
from sandpool.api.template import ALLOWED, DISALLOWED, OVERRIDES
from sandpool.api.views import ClaimView, TemplateView, controller_reference
from sandpool.controllers.claim.errors import (
    ClaimError,
    environment_rejected,
    failure,
    invalid_metadata,
    volume_claim_templates_rejected,
)
from sandpool.controllers.claim.ownership import identity_labels
from sandpool.controllers.options import DEFAULT_LABEL_DOMAINS
from sandpool.controllers.revision import TemplateRevision, new_sandbox
from sandpool.kube.labels import label_key_errors, label_value_errors

_RESTRICTED_DOMAINS: Final = ("kubernetes.io", "k8s.io", "agents.x-k8s.io")
_EXEMPT: Final = frozenset({labels.SAFE_TO_EVICT})
# The label that selects the router's pods. The default network policy admits traffic from every pod that carries it.
_ROUTER_LABEL: Final = ("app", "sandbox-router")


def sandbox_for(
    claim: ClaimView, template: TemplateView, revision: TemplateRevision, trace_context: str = ""
) -> Object:
    """The Sandbox for a claim. It has the claim's name, so that two reconciles cannot create two."""
    identity = identity_labels(claim)
    return new_sandbox(
        revision,
        namespace=claim.namespace,
        name=claim.name,
        owner=controller_reference(SANDBOX_CLAIM, claim),
        labels={**identity, labels.LAUNCH_TYPE: labels.LAUNCH_COLD},
        annotations={labels.TRACE_CONTEXT: trace_context} if trace_context else None,
        pod_labels=identity,
        spec=_spec(claim, template, revision),
    )


def _spec(claim: ClaimView, template: TemplateView, revision: TemplateRevision) -> Object:
    volume_claims = merge_volume_claims(
        template.volume_claim_templates, claim.volume_claim_templates, template.volume_claim_templates_policy
    )
    pod_template: Object = revision.spec["podTemplate"]
    written = pod_template.get("metadata") or {}
    pod_labels = merge_metadata(written.get("labels") or {}, claim.additional_labels, "label")
    annotations = merge_metadata(written.get("annotations") or {}, claim.additional_annotations, "annotation")
    pod_spec = inject_env(pod_template["spec"], claim.env, template.env_vars_injection_policy)
    spec = {
        **revision.spec,
        "podTemplate": {
            **pod_template,
            "metadata": {**written, "labels": pod_labels, **({"annotations": annotations} if annotations else {})},
            "spec": pod_spec,
        },
    }
    if volume_claims:
        spec["volumeClaimTemplates"] = volume_claims
    return spec


# --- pod metadata ----------------------------------------------------------------------------------------------------


def parse_label_domains(text: str) -> tuple[str, ...]:
    """Read label domains, separated by commas or line ends, in any case. An empty text means the default."""
    domains = (domain.strip().lower() for domain in re.split(r"[,\r\n]", text))
    return tuple(domain for domain in domains if domain) or DEFAULT_LABEL_DOMAINS


def check_metadata(pod_labels: Mapping[str, str], annotations: Mapping[str, str], domains: Sequence[str]) -> None:
    """Raise ``invalid_metadata`` for the first key, in sorted order, that a claim may not set."""
    for key in sorted(pod_labels):
        if wrong := _label_problem(key, pod_labels[key], domains):
            raise invalid_metadata(f'failed to validate label "{key}": {wrong}')
    for key in sorted(annotations):
        if wrong := _annotation_problem(key):
            raise invalid_metadata(f'failed to validate annotation "{key}": {wrong}')


def merge_metadata(existing: Mapping[str, str], added: Mapping[str, str], what: str) -> dict[str, str]:
    """Add a claim's labels or annotations (``what``) to the template's. The claim may repeat values, not change
    them."""
    for key in sorted(added):
        if key in existing and existing[key] != added[key]:
            raise failure(
                f'metadata override conflict: {what} "{key}" is defined in template with value "{existing[key]}", '
                f'but claim requests "{added[key]}"'
            )
    return {**existing, **added}


def _label_problem(key: str, value: str, domains: Sequence[str]) -> str:
    if (key.lower(), value.lower()) == _ROUTER_LABEL:
        return f'restricted system label value: "{key}"="{value}" is not allowed in AdditionalPodMetadata'
    if problems := label_key_errors(key):
        return f'invalid label key: "{key}": {"; ".join(problems)}'
    domain, slash, _ = key.lower().rpartition("/")
    if not slash:
        return (
            f"label \"{key}\" must have a domain prefix (e.g. 'sandbox.users.io/my-label') to prevent opting into "
            "unintended policy domains"
        )
    if not _is_within(domain, domains):
        return f'label domain "{domain}" is not in the allowlist'
    if problems := label_value_errors(value):
        return f'invalid label value: "{value}" does not match allowed pattern: {"; ".join(problems)}'
    return ""


def _annotation_problem(key: str) -> str:
    if problems := label_key_errors(key):
        return f'invalid annotation key: "{key}": {"; ".join(problems)}'
    domain = key.lower().rpartition("/")[0]
    if _is_within(domain, _RESTRICTED_DOMAINS) and key not in _EXEMPT:
        return f'restricted system domain: "{key}" is not allowed in AdditionalPodMetadata'
    return ""


def _is_within(domain: str, domains: Sequence[str]) -> bool:
    return any(domain == each or domain.endswith(f".{each}") for each in domains)


# --- environment variables -------------------------------------------------------------------------------------------


def inject_env(pod_spec: Object, env: Sequence[SharedObject], policy: str) -> Object:
    """Return the pod spec with a claim's variables; the same object if there are none.

    A variable without a container name goes to the first container, after those that name it. Under ``Overrides`` it
    replaces an existing variable of its name entirely, including one from a Secret; under ``Allowed`` that is an error.
    """
    if not env:
        return pod_spec
    if policy not in (ALLOWED, OVERRIDES):
        raise environment_rejected("environment variable injection is not allowed by the template policy")
    init_containers: list[Object] = pod_spec.get("initContainers") or []
    containers: list[Object] = pod_spec.get("containers") or []
    _check_targets(env, {container["name"] for container in (*init_containers, *containers)})

    changed = dict(pod_spec)
    if init_containers:
        changed["initContainers"] = [
            _with_variables(container, _of_container(env, container["name"]), policy) for container in init_containers
        ]
    changed["containers"] = [
        _with_variables(container, _of_container(env, container["name"], is_default=index == 0), policy)
        for index, container in enumerate(containers)
    ]
    return changed


def _check_targets(env: Sequence[SharedObject], known: set[str]) -> None:
    for variable in env:
        target = variable.get("containerName")
        if target and target not in known:
            raise failure(
                f'target container "{target}" not found in template for environment variable "{variable["name"]}"'
            )


def _of_container(env: Sequence[SharedObject], name: str, *, is_default: bool = False) -> list[SharedObject]:
    own = [variable for variable in env if variable.get("containerName") == name]
    return own + [variable for variable in env if not variable.get("containerName")] if is_default else own


def _with_variables(container: Object, variables: Sequence[SharedObject], policy: str) -> Object:
    if not variables:
        return container
    if policy == ALLOWED and container.get("envFrom"):
        raise environment_rejected(
            f'container "{container["name"]}" uses EnvFrom sources; Allowed policy cannot safely prevent overriding '
            "EnvFrom-provided variables"
        )
    env: list[Object] = list(container.get("env") or [])
    for variable in variables:
        name = variable["name"]
        entry = {"name": name, "value": variable["value"]}
        at = next((index for index, each in enumerate(env) if each["name"] == name), None)
        if at is None:
            env.append(entry)
        elif policy == OVERRIDES:
            env[at] = entry
        else:
            raise failure(f'environment variable override is not allowed by the template policy for variable "{name}"')
    return {**container, "env": env}


# --- volume claim templates ------------------------------------------------------------------------------------------


def merge_volume_claims(
    template: Sequence[SharedObject], claim: Sequence[SharedObject], policy: str
) -> list[SharedObject]:
    """Combine the volume claim templates of a template and a claim.

    ``Allowed`` gives both lists, ``Overrides`` replaces those of the same name by the claim's. Names must be present
    and unique in each list, also if the template is used as it is.
    """
    if not claim:
        _check_volume_names(template, "invalid volume claim templates in template: ")
        return list(template)
    _check_volume_names(template, "failed to merge volume claim templates: template: ")
    _check_volume_names(claim, "failed to merge volume claim templates: claim: ")
    known = {_volume_name(each) for each in template}
    if policy == ALLOWED:
        for each in claim:
            if _volume_name(each) in known:
                raise _volumes_rejected(
                    "overriding volume claim templates is forbidden by the template: cannot override template volume "
                    f'"{_volume_name(each)}"'
                )
        return [*template, *claim]
    if policy == OVERRIDES:
        own = {_volume_name(each): each for each in claim}
        replaced = [own.get(_volume_name(each), each) for each in template]
        return replaced + [each for each in claim if _volume_name(each) not in known]
    if policy in ("", DISALLOWED):
        raise _volumes_rejected("volume claim templates are disallowed by the template")
    raise _volumes_rejected(f'unknown volume claim templates policy "{policy}"')


def _volumes_rejected(detail: str) -> ClaimError:
    return volume_claim_templates_rejected(f"failed to merge volume claim templates: {detail}")


def _check_volume_names(templates: Sequence[SharedObject], where: str) -> None:
    seen: set[str] = set()
    for index, template in enumerate(templates):
        name = _volume_name(template)
        if not name:
            raise volume_claim_templates_rejected(
                f"{where}invalid volume claim templates: name at index {index} is empty"
            )
        if name in seen:
            raise volume_claim_templates_rejected(f'{where}invalid volume claim templates: duplicate name "{name}"')
        seen.add(name)


def _volume_name(template: SharedObject) -> str:
    name: str = (template.get("metadata") or {}).get("name") or ""
    return name
