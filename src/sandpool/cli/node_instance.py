"""Identifiers that keep several nodes on one machine apart, derived from their data directories."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandpool.node.pods.host_users import FIRST

# Size of the host uid range that the pods of one data directory use.
_USERS_EACH: Final = 4096


@dataclass(frozen=True, slots=True)
class NodeInstance:
    """Suffix of the names of cgroups and interfaces, and the first host uid of the pods."""

    instance: str
    first_host_user: int

    @classmethod
    def of(cls, directory: Path) -> NodeInstance:
        digest = hashlib.sha256(os.path.realpath(directory).encode()).hexdigest()
        return cls(f"-{digest[:6]}", FIRST + int(digest[:3], 16) * _USERS_EACH)
