"""The API users of the parts of ``sandpool up``, so that the audit log tells them apart.

Those in the process that holds the data are administrators. The router, the dashboard and the E2B endpoint are other
processes and have roles of their own (``router.role``, ``dashboard.role``, ``e2b.role``)."""

from __future__ import annotations

from typing import Final

from sandpool.server.auth.groups import MASTERS
from sandpool.server.request.messages import User

CONTROLLERS: Final = User("sandpool-controllers", (MASTERS,))
NODE: Final = User("sandpool-node", (MASTERS,))
#: Creates the objects by which clients find the router, and reconciles Gateways.
ROUTER_CONTROL: Final = User("sandpool-router-control", (MASTERS,))
#: The process that reads bytes of clients and sandboxes.
ROUTER: Final = User("sandpool-router")
#: The processes that serve browsers and clients of E2B.
DASHBOARD: Final = User("sandpool-dashboard")
E2B: Final = User("sandpool-e2b")
