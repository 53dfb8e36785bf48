"""Permissions that a node needs in the API.

They are broad: a node that runs pods must read the objects that pods use, in every namespace. Restricting a node to the
objects of its own pods is possible only in kube-apiserver, for users named like kubelets (``system:node:...``).
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
    # Content of pods, and the CA of clients.
    Permission(CONFIG_MAP, ("get",)),
    Permission(SECRET, ("get",)),
    Permission(SERVICE_ACCOUNT, ("create",), "token"),
    # Volumes on this machine's disk.
    Permission(PERSISTENT_VOLUME_CLAIM, _WATCH),
    Permission(PERSISTENT_VOLUME, ("get", *_WATCH, "create", "delete")),
    Permission(STORAGE_CLASS, ("create",)),
    Permission(EVENT, ("create", "patch")),
    # Authorization of exec, attach, port-forward and logs.
    Permission(SUBJECT_ACCESS_REVIEW, ("create",)),
)
#: In the namespace of node leases.
ALIVE: Final = Permission(LEASE, ("create", "patch"))
