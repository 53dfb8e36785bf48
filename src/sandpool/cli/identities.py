"""Who the parts of ``sandpool up`` are to its API: users of their own, so that the audit log tells who did what.

All of them may do everything, as the administrator may: they live in the process that holds the data."""

from __future__ import annotations

from typing import Final

from sandpool.server.auth.groups import MASTERS
from sandpool.server.request.messages import User

CONTROLLERS: Final = User("sandpool-controllers", (MASTERS,))
NODE: Final = User("sandpool-node", (MASTERS,))
ROUTER: Final = User("sandpool-router", (MASTERS,))
