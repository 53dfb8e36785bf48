"""Renewals of the lease in a queue of their own at the API server.

An API server lets requests wait by who sent them (API priority and fairness). The controllers and their lease are one
service account, so while a large pool fills, the renewal of the lease stands behind the writes that fill it; on a
cluster that is starved of processors it may come too late, and whoever works ends and starts again. Every cluster keeps
a priority level for leases, which its own controllers use, and nothing but these few requests goes there.
"""

from __future__ import annotations

from typing import Final

from sandpool.api.kinds import SERVICE_ACCOUNT
from sandpool.api.resource import Object, ResourceType
from sandpool.controllers.preflight import LEASE_PERMISSION
from sandpool.install.workload import manifest

FLOW_SCHEMA: Final = ResourceType("flowcontrol.apiserver.k8s.io", "v1", "FlowSchema", "flowschemas", namespaced=False)
#: One of those that Kubernetes itself sees to that they are there.
PRIORITY_LEVEL: Final = "leader-election"
# As that for the leases of the cluster's own service accounts. The one for all service accounts has 9000; the lowest
# number that matches is taken.
_PRECEDENCE: Final = 200


def lease_flow(name: str, namespace: str, labels: Object, account: str) -> Object:
    """What a service account asks about leases in its own namespace waits for nothing else that it asks."""
    return manifest(
        FLOW_SCHEMA,
        name,
        labels=labels,
        spec={
            "priorityLevelConfiguration": {"name": PRIORITY_LEVEL},
            "matchingPrecedence": _PRECEDENCE,
            "distinguisherMethod": {"type": "ByUser"},
            "rules": [
                {
                    "subjects": [
                        {
                            "kind": SERVICE_ACCOUNT.kind,
                            "serviceAccount": {"name": account, "namespace": namespace},
                        }
                    ],
                    "resourceRules": [
                        {
                            "apiGroups": [LEASE_PERMISSION.type.group],
                            "resources": [LEASE_PERMISSION.type.plural],
                            "verbs": list(LEASE_PERMISSION.verbs),
                            "namespaces": [namespace],
                        }
                    ],
                }
            ],
        },
    )
