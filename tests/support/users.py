"""The users of the APIs that tests run on."""

from __future__ import annotations

from collections.abc import Mapping

from sandpool.bench.server_process import ADMIN, token_file
from sandpool.testing.backend import WRITERS

__all__ = ["ADMIN", "USERS", "WRITERS", "token_file"]

# Ordinary users with their groups. They have only the permissions of all authenticated users until a test grants more.
USERS: Mapping[str, tuple[str, ...]] = {"alice": ("developers",), "bob": ()}
