"""Derived names, and the short name hash used in labels."""

from __future__ import annotations

from collections.abc import Container
from functools import lru_cache
from random import Random
from typing import Final

DEFAULT_CLUSTER_DOMAIN: Final = "cluster.local"

# No vowels, so that no words arise, and no characters that are easily confused.
_RANDOM_CHARACTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_RANDOM_LENGTH: Final = 5
_LONGEST_GENERATED: Final = 63

_FNV_OFFSET: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193


@lru_cache(4096)  # pool and template names are hashed on every reconcile
def name_hash(text: str) -> str:
    """Hash a name to eight hexadecimal digits: 32-bit FNV-1a over UTF-8. Labels use it because a name may be too long
    for a label value."""
    value = _FNV_OFFSET
    for byte in text.encode():
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return f"{value:08x}"


def generate_name(prefix: str, rng: Random) -> str:
    """Generate the name for ``generateName``. A long prefix is truncated, so that the result is a valid label."""
    suffix = "".join(rng.choices(_RANDOM_CHARACTERS, k=_RANDOM_LENGTH))
    return prefix[: _LONGEST_GENERATED - _RANDOM_LENGTH] + suffix


def volume_claim_name(template: str, sandbox: str) -> str:
    """The name of the PersistentVolumeClaim for a volume claim template of a sandbox."""
    return f"{template}-{sandbox}"


def network_policy_name(owner: str) -> str:
    """The name of a template's NetworkPolicy. Old versions created one per claim, with the same naming scheme."""
    return f"{owner}-network-policy"


def service_port_name(port: int, protocol: str, taken: Container[str]) -> str:
    """A unique name for an unnamed service port."""
    base = name = f"p-{port}-{protocol.lower()}"
    count = 1
    while name in taken:
        count += 1
        name = f"{base}-{count}"
    return name


def service_fqdn(service: str, namespace: str, cluster_domain: str = DEFAULT_CLUSTER_DOMAIN) -> str:
    return f"{service}.{namespace}.svc.{cluster_domain}"
