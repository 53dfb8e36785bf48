"""The service account and permissions with which machines join a cluster through ``sandpool node``.

The nodes run outside the cluster or beside it. All of them share one account, so its token can act as any of them.
"""

from __future__ import annotations

from typing import Final

from sandpool.api.kinds import NODE_LEASES, ROLE, ROLE_BINDING
from sandpool.api.resource import Object
from sandpool.install import roles, workload
from sandpool.install.names import NAMESPACE, labels
from sandpool.node.permissions import ALIVE, NEEDS

ACCOUNT: Final = "sandpool-node"
_LABELS: Final = labels(ACCOUNT, "node")


def objects() -> list[Object]:
    account = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
    alive = {"apiGroup": ROLE.group, "kind": ROLE.kind, "name": ACCOUNT}
    return [
        workload.service_account(ACCOUNT, NAMESPACE, _LABELS),
        *roles.cluster_role(ACCOUNT, NAMESPACE, _LABELS, roles.rules(NEEDS), ACCOUNT),
        workload.manifest(ROLE, ACCOUNT, NODE_LEASES, _LABELS, rules=roles.rules((ALIVE,))),
        workload.manifest(ROLE_BINDING, ACCOUNT, NODE_LEASES, _LABELS, roleRef=alive, subjects=[account]),
    ]
