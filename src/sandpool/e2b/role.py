"""The permissions of the E2B endpoint of a home.

Its tenants may be of any namespace, and the variables of a sandbox are in a Secret beside its claim. RBAC knows no
prefixes of names, so the endpoint may read every Secret whose name it knows; it may list those of API keys alone.
"""

from __future__ import annotations

from typing import Final

from sandpool.api.kinds import NODE, POD, SANDBOX, SANDBOX_CLAIM, SANDBOX_WARM_POOL, SECRET
from sandpool.controllers.preflight import Permission
from sandpool.install.roles import rules

#: Of the roles and of their bindings.
ROLE_NAME: Final = "sandpool-e2b"
#: A session is opened with GET or POST.
_CONNECT: Final = ("get", "create")
RULES: Final = rules(
    (
        Permission(SANDBOX_CLAIM, ("get", "list", "watch", "create", "patch", "delete")),
        Permission(SANDBOX, ("get", "list", "watch", "patch")),  # pause and resume
        Permission(SANDBOX_WARM_POOL, ("get", "list")),
        Permission(POD, _CONNECT, "exec"),
        Permission(POD, _CONNECT, "portforward"),
        Permission(NODE, ("get",), "proxy"),  # metrics
        Permission(SECRET, ("get", "create")),
    )
)
#: In the namespace of the API keys.
KEY_RULES: Final = rules((Permission(SECRET, ("list", "watch")),))
