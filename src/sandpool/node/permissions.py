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
from sandpool.controllers.access import Need

_WATCH: Final = ("list", "watch")

NEEDS: Final = (
    Need(NODE, ("create", "patch")),
    Need(NODE, ("patch",), "status"),
    Need(POD, (*_WATCH, "delete")),
    Need(POD, ("patch",), "status"),
    Need(SERVICE, _WATCH),
    Need(NAMESPACE, _WATCH),
    Need(NETWORK_POLICY, _WATCH),
    Need(RUNTIME_CLASS, _WATCH),
    # What pods are given, and by which authority clients are known.
    Need(CONFIG_MAP, ("get",)),
    Need(SECRET, ("get",)),
    Need(SERVICE_ACCOUNT, ("create",), "token"),
    # Volumes on this machine's disk.
    Need(PERSISTENT_VOLUME_CLAIM, _WATCH),
    Need(PERSISTENT_VOLUME, ("get", *_WATCH, "create", "delete")),
    Need(STORAGE_CLASS, ("create",)),
    Need(EVENT, ("create", "patch")),
    # Who may reach into pods.
    Need(SUBJECT_ACCESS_REVIEW, ("create",)),
)
#: In the namespace of the leases of nodes.
ALIVE: Final = Need(LEASE, ("create", "patch"))
