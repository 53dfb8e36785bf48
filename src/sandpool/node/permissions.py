"""What a node asks of an API, and so what it must be allowed to do there.

It is much: who runs pods must read what pods are given, in every namespace. That a node sees only what its own pods
need is something only kube-apiserver can decide, for users that are kubelets by name (``system:node:...``).
"""

from __future__ import annotations

from typing import Final

from sandpool.api.kinds import (
    CONFIG_MAP,
    EVENT,
    LEASE,
    NAMESPACE,
    NETWORK_POLICY,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    RUNTIME_CLASS,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    STORAGE_CLASS,
    SUBJECT_ACCESS_REVIEW,
)
from sandpool.controllers.preflight import Permission

_WATCH: Final = ("list", "watch")

NEEDS: Final = (
    Permission(NODE, ("create", "patch")),
    Permission(NODE, ("patch",), "status"),
    Permission(POD, (*_WATCH, "delete")),
    Permission(POD, ("patch",), "status"),
    Permission(SERVICE, _WATCH),
    Permission(NAMESPACE, _WATCH),
    Permission(NETWORK_POLICY, _WATCH),
    Permission(RUNTIME_CLASS, _WATCH),
    # What pods are given, and by which authority clients are known.
    Permission(CONFIG_MAP, ("get",)),
    Permission(SECRET, ("get",)),
    Permission(SERVICE_ACCOUNT, ("create",), "token"),
    # Volumes on this machine's disk.
    Permission(PERSISTENT_VOLUME_CLAIM, _WATCH),
    Permission(PERSISTENT_VOLUME, ("get", *_WATCH, "create", "delete")),
    Permission(STORAGE_CLASS, ("create",)),
    Permission(EVENT, ("create", "patch")),
    # Who may reach into pods.
    Permission(SUBJECT_ACCESS_REVIEW, ("create",)),
)
#: In the namespace of the leases of nodes.
ALIVE: Final = Permission(LEASE, ("create", "patch"))
