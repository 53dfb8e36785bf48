"""A FlowSchema that gives renewals of the leader lease their own queue at the API server.

API priority and fairness queues requests by user. The controllers use one service account for their writes and for the
lease, so while a large pool fills, a renewal would wait behind those writes. On a cluster short of CPU it could be too
late, and the leader would restart. Every cluster has a priority level for leader election, which its own controllers
use; this schema sends the lease requests there, and no others.
"""

from __future__ import annotations

from typing import Final

from sandpool.api.kinds import SERVICE_ACCOUNT
from sandpool.api.resource import Object, ResourceType
from sandpool.controllers.preflight import LEASE_PERMISSION
from sandpool.install.workload import manifest

FLOW_SCHEMA: Final = ResourceType("flowcontrol.apiserver.k8s.io", "v1", "FlowSchema", "flowschemas", namespaced=False)
#: A built-in priority level that Kubernetes maintains.
PRIORITY_LEVEL: Final = "leader-election"
# The precedence that Kubernetes uses for leases of its own service accounts. The schema for all service accounts has
# 9000; the matching schema with the lowest number applies.
_PRECEDENCE: Final = 200


def lease_flow(name: str, namespace: str, labels: Object, account: str) -> Object:
    """Separate a service account's lease requests in its namespace from its other requests."""
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
