"""The permissions of the dashboard of a home: what its pages show, and what its buttons do."""

from __future__ import annotations

from typing import Final

from sandpool.api.kinds import CORE_EVENT, NODE, POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL
from sandpool.api.resource import Object
from sandpool.controllers.preflight import Permission
from sandpool.install.roles import rules

#: Of the ClusterRole and of its binding.
ROLE_NAME: Final = "sandpool-dashboard"
_READ: Final = ("get", "list", "watch")
#: A session is opened with GET or POST.
_CONNECT: Final = ("get", "create")
_SHOWN: Final = (
    *(Permission(kind, _READ) for kind in (SANDBOX_CLAIM, SANDBOX, SANDBOX_WARM_POOL, SANDBOX_TEMPLATE)),
    Permission(NODE, ("list", "watch")),
    Permission(NODE, ("get",), "proxy"),  # usage
    Permission(POD, ("get",)),  # the reason why a sandbox is not ready
    Permission(CORE_EVENT, ("list",)),
    Permission(POD, ("get",), "log"),
    Permission(POD, _CONNECT, "exec"),  # processes and files are read by commands
)
_CHANGED: Final = (
    Permission(SANDBOX_CLAIM, ("create", "delete")),
    Permission(SANDBOX, ("patch",)),  # suspend and resume
    Permission(SANDBOX_WARM_POOL, ("patch",)),
    Permission(SANDBOX_TEMPLATE, ("patch",)),
    Permission(POD, _CONNECT, "portforward"),
)


def role_rules(*, read_only: bool) -> list[Object]:
    return rules(_SHOWN if read_only else (*_SHOWN, *_CHANGED))
