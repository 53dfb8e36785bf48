"""What tells the nodes of one machine apart: a mark made of the name of the directory each has its data in."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandpool.node.pods.host_users import FIRST

# Users that are kept for the pods of one data directory.
_USERS_EACH: Final = 4096


@dataclass(frozen=True, slots=True)
class Mark:
    """``instance`` is for the names of cgroups and interfaces, ``first_host_user`` where its pods' users begin."""

    instance: str
    first_host_user: int

    @classmethod
    def of(cls, directory: Path) -> Mark:
        digest = hashlib.sha256(os.path.realpath(directory).encode()).hexdigest()
        return cls(f"-{digest[:6]}", FIRST + int(digest[:3], 16) * _USERS_EACH)
