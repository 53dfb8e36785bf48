"""The API users of the parts of ``sandpool up``, so that the audit log tells them apart.

They are administrators: they run in the process that holds the data."""

from __future__ import annotations

from typing import Final

from sandpool.server.auth.groups import MASTERS
from sandpool.server.request.messages import User

CONTROLLERS: Final = User("sandpool-controllers", (MASTERS,))
NODE: Final = User("sandpool-node", (MASTERS,))
ROUTER: Final = User("sandpool-router", (MASTERS,))
