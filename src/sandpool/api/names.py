"""Names made from other names, and the short hash that stands for a name in labels."""

from __future__ import annotations

from collections.abc import Container
from functools import lru_cache
from random import Random
from typing import Final

DEFAULT_CLUSTER_DOMAIN: Final = "cluster.local"

# No vowels and nothing that is easily confused, so that a generated name neither offends nor misleads.
_RANDOM_CHARACTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_RANDOM_LENGTH: Final = 5
_LONGEST_GENERATED: Final = 63

_FNV_OFFSET: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193


@lru_cache(4096)  # the names of pools and templates are hashed again and again
def name_hash(text: str) -> str:
    """Eight hexadecimal digits for a name of any length: FNV-1a, 32 bits, over UTF-8. Labels hold it where the name
    itself might be too long for a label value."""
    value = _FNV_OFFSET
    for byte in text.encode():
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return f"{value:08x}"


def generate_name(prefix: str, rng: Random) -> str:
    """The name of an object created with ``generateName``. A long prefix is cut, so the result is still a label."""
    suffix = "".join(rng.choices(_RANDOM_CHARACTERS, k=_RANDOM_LENGTH))
    return prefix[: _LONGEST_GENERATED - _RANDOM_LENGTH] + suffix


def volume_claim_name(template: str, sandbox: str) -> str:
    """The PersistentVolumeClaim of one of a sandbox's volume claim templates."""
    return f"{template}-{sandbox}"


def network_policy_name(owner: str) -> str:
    """The NetworkPolicy of a template. Claims had one of their own once, named the same way after the claim."""
    return f"{owner}-network-policy"


def service_port_name(port: int, protocol: str, taken: Container[str]) -> str:
    """A name for a service port that has none, different from those that are taken."""
    base = name = f"p-{port}-{protocol.lower()}"
    count = 1
    while name in taken:
        count += 1
        name = f"{base}-{count}"
    return name


def service_fqdn(service: str, namespace: str, cluster_domain: str = DEFAULT_CLUSTER_DOMAIN) -> str:
    return f"{service}.{namespace}.svc.{cluster_domain}"
