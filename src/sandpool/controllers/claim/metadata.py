"""Labels and annotations a claim brings for its pod: which are allowed, and how they join those of the template.

Labels decide which policies, services and budgets select a pod, so a claim may only set those of domains that were
given to users. Annotations select nothing and are free, except where Kubernetes itself or we read them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from sandpool.api.labels import SAFE_TO_EVICT
from sandpool.controllers.claim.errors import failure, invalid_metadata
from sandpool.controllers.options import DEFAULT_LABEL_DOMAINS
from sandpool.kube.labels import key_problems, value_problems

_RESTRICTED_DOMAINS: Final = ("kubernetes.io", "k8s.io", "agents.x-k8s.io")
_EXEMPT: Final = frozenset({SAFE_TO_EVICT})
# What selects the router's pods. The default network policy lets everybody in who bears it.
_ROUTER_LABEL: Final = ("app", "sandbox-router")


def parse_label_domains(text: str) -> tuple[str, ...]:
    """The domains in a file: separated by commas or line ends, in any case. None in it means the default."""
    domains = (domain.strip().lower() for domain in re.split(r"[,\r\n]", text))
    return tuple(domain for domain in domains if domain) or DEFAULT_LABEL_DOMAINS


def check(labels: Mapping[str, str], annotations: Mapping[str, str], domains: Sequence[str]) -> None:
    """Raises InvalidMetadata for the first, by key, that is not allowed."""
    for key in sorted(labels):
        if wrong := _label_problem(key, labels[key], domains):
            raise invalid_metadata(f'failed to validate label "{key}": {wrong}')
    for key in sorted(annotations):
        if wrong := _annotation_problem(key):
            raise invalid_metadata(f'failed to validate annotation "{key}": {wrong}')


def merge(existing: Mapping[str, str], added: Mapping[str, str], what: str) -> dict[str, str]:
    """The template's labels or annotations (``what``) with those of the claim, which may repeat and not change them."""
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
    if problems := key_problems(key):
        return f'invalid label key: "{key}": {"; ".join(problems)}'
    domain, slash, _ = key.lower().rpartition("/")
    if not slash:
        return (
            f"label \"{key}\" must have a domain prefix (e.g. 'sandbox.users.io/my-label') to prevent opting into "
            "unintended policy domains"
        )
    if not _is_within(domain, domains):
        return f'label domain "{domain}" is not in the allowlist'
    if problems := value_problems(value):
        return f'invalid label value: "{value}" does not match allowed pattern: {"; ".join(problems)}'
    return ""


def _annotation_problem(key: str) -> str:
    if problems := key_problems(key):
        return f'invalid annotation key: "{key}": {"; ".join(problems)}'
    domain = key.lower().rpartition("/")[0]
    if _is_within(domain, _RESTRICTED_DOMAINS) and key not in _EXEMPT:
        return f'restricted system domain: "{key}" is not allowed in AdditionalPodMetadata'
    return ""


def _is_within(domain: str, domains: Sequence[str]) -> bool:
    return any(domain == each or domain.endswith(f".{each}") for each in domains)
