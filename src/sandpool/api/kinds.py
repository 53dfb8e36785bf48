"""The known kinds: the Kubernetes kinds that Sandpool serves or uses, and the four of the agent-sandbox API.

Names, short names, categories, subresources and verbs are those kube-apiserver 1.36 lists in discovery.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandpool.api.resource import ResourceType

AGENTS_GROUP: Final = "agents.x-k8s.io"
EXTENSIONS_GROUP: Final = "extensions.agents.x-k8s.io"
VERSION: Final = "v1beta1"

_ALL: Final = ("all",)
_STATUS: Final = frozenset({"status"})
_SCALABLE: Final = frozenset({"status", "scale"})
_CREATE_ONLY: Final = ("create",)
# Verbs of custom resources in discovery: the verbs of built-in kinds in another order.
_CUSTOM_VERBS: Final = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")


# core/v1 ------------------------------------------------------------------------------------------------------------

NAMESPACE: Final = ResourceType(
    "",
    "v1",
    "Namespace",
    "namespaces",
    namespaced=False,
    short_names=("ns",),
    subresources=frozenset({"finalize", "status"}),
    # Namespaces do not support deletecollection.
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
)
NODE: Final = ResourceType(
    "", "v1", "Node", "nodes", namespaced=False, short_names=("no",), subresources=frozenset({"proxy", "status"})
)
POD: Final = ResourceType(
    "",
    "v1",
    "Pod",
    "pods",
    short_names=("po",),
    categories=_ALL,
    subresources=frozenset(
        {
            "attach",
            "binding",
            "ephemeralcontainers",
            "eviction",
            "exec",
            "log",
            "portforward",
            "proxy",
            "resize",
            "status",
        }
    ),
)
SERVICE: Final = ResourceType(
    "",
    "v1",
    "Service",
    "services",
    short_names=("svc",),
    categories=_ALL,
    subresources=frozenset({"proxy", "status"}),
)
PERSISTENT_VOLUME_CLAIM: Final = ResourceType(
    "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", short_names=("pvc",), subresources=_STATUS
)
PERSISTENT_VOLUME: Final = ResourceType(
    "", "v1", "PersistentVolume", "persistentvolumes", namespaced=False, short_names=("pv",), subresources=_STATUS
)
SECRET: Final = ResourceType("", "v1", "Secret", "secrets")
CONFIG_MAP: Final = ResourceType("", "v1", "ConfigMap", "configmaps", short_names=("cm",))
SERVICE_ACCOUNT: Final = ResourceType(
    "", "v1", "ServiceAccount", "serviceaccounts", short_names=("sa",), subresources=frozenset({"token"})
)
CORE_EVENT: Final = ResourceType("", "v1", "Event", "events", short_names=("ev",))
ENDPOINTS: Final = ResourceType("", "v1", "Endpoints", "endpoints", short_names=("ep",))

# the named groups -----------------------------------------------------------------------------------------------------

EVENT: Final = ResourceType("events.k8s.io", "v1", "Event", "events", short_names=("ev",))
ENDPOINT_SLICE: Final = ResourceType("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
LEASE: Final = ResourceType("coordination.k8s.io", "v1", "Lease", "leases")
#: The namespace of the nodes' Leases.
NODE_LEASES: Final = "kube-node-lease"
NETWORK_POLICY: Final = ResourceType(
    "networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", short_names=("netpol",)
)
RUNTIME_CLASS: Final = ResourceType("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", namespaced=False)
STORAGE_CLASS: Final = ResourceType(
    "storage.k8s.io", "v1", "StorageClass", "storageclasses", namespaced=False, short_names=("sc",)
)
PRIORITY_CLASS: Final = ResourceType(
    "scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False, short_names=("pc",)
)
POD_DISRUPTION_BUDGET: Final = ResourceType(
    "policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", short_names=("pdb",), subresources=_STATUS
)

DEPLOYMENT: Final = ResourceType(
    "apps", "v1", "Deployment", "deployments", short_names=("deploy",), categories=_ALL, subresources=_SCALABLE
)
REPLICA_SET: Final = ResourceType(
    "apps", "v1", "ReplicaSet", "replicasets", short_names=("rs",), categories=_ALL, subresources=_SCALABLE
)
DAEMON_SET: Final = ResourceType(
    "apps", "v1", "DaemonSet", "daemonsets", short_names=("ds",), categories=_ALL, subresources=_STATUS
)
STATEFUL_SET: Final = ResourceType(
    "apps", "v1", "StatefulSet", "statefulsets", short_names=("sts",), categories=_ALL, subresources=_SCALABLE
)

_RBAC: Final = "rbac.authorization.k8s.io"
ROLE: Final = ResourceType(_RBAC, "v1", "Role", "roles")
CLUSTER_ROLE: Final = ResourceType(_RBAC, "v1", "ClusterRole", "clusterroles", namespaced=False)
ROLE_BINDING: Final = ResourceType(_RBAC, "v1", "RoleBinding", "rolebindings")
CLUSTER_ROLE_BINDING: Final = ResourceType(_RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False)

CUSTOM_RESOURCE_DEFINITION: Final = ResourceType(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    namespaced=False,
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    subresources=_STATUS,
)

# Reviews: answered and never stored ---------------------------------------------------------------------------------

_AUTHENTICATION: Final = "authentication.k8s.io"
_AUTHORIZATION: Final = "authorization.k8s.io"
TOKEN_REVIEW: Final = ResourceType(
    _AUTHENTICATION, "v1", "TokenReview", "tokenreviews", namespaced=False, verbs=_CREATE_ONLY
)
SELF_SUBJECT_REVIEW: Final = ResourceType(
    _AUTHENTICATION, "v1", "SelfSubjectReview", "selfsubjectreviews", namespaced=False, verbs=_CREATE_ONLY
)
SELF_SUBJECT_ACCESS_REVIEW: Final = ResourceType(
    _AUTHORIZATION, "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", namespaced=False, verbs=_CREATE_ONLY
)
SUBJECT_ACCESS_REVIEW: Final = ResourceType(
    _AUTHORIZATION, "v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False, verbs=_CREATE_ONLY
)
LOCAL_SUBJECT_ACCESS_REVIEW: Final = ResourceType(
    _AUTHORIZATION, "v1", "LocalSubjectAccessReview", "localsubjectaccessreviews", verbs=_CREATE_ONLY
)
SELF_SUBJECT_RULES_REVIEW: Final = ResourceType(
    _AUTHORIZATION, "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews", namespaced=False, verbs=_CREATE_ONLY
)

# The agent-sandbox API ------------------------------------------------------------------------------------------------

SANDBOX: Final = ResourceType(
    AGENTS_GROUP,
    VERSION,
    "Sandbox",
    "sandboxes",
    short_names=("sandbox",),
    subresources=_STATUS,
    verbs=_CUSTOM_VERBS,
)
SANDBOX_CLAIM: Final = ResourceType(
    EXTENSIONS_GROUP,
    VERSION,
    "SandboxClaim",
    "sandboxclaims",
    short_names=("sandboxclaim",),
    subresources=_STATUS,
    verbs=_CUSTOM_VERBS,
)
SANDBOX_TEMPLATE: Final = ResourceType(
    EXTENSIONS_GROUP,
    VERSION,
    "SandboxTemplate",
    "sandboxtemplates",
    short_names=("sandboxtemplate",),
    verbs=_CUSTOM_VERBS,
)
SANDBOX_WARM_POOL: Final = ResourceType(
    EXTENSIONS_GROUP,
    VERSION,
    "SandboxWarmPool",
    "sandboxwarmpools",
    short_names=("swp",),
    subresources=_SCALABLE,
    verbs=_CUSTOM_VERBS,
)

# Kinds that the server serves without a CustomResourceDefinition.
BUILT_IN: Final = (
    NAMESPACE,
    NODE,
    POD,
    SERVICE,
    PERSISTENT_VOLUME_CLAIM,
    PERSISTENT_VOLUME,
    SECRET,
    CONFIG_MAP,
    SERVICE_ACCOUNT,
    CORE_EVENT,
    ENDPOINTS,
    EVENT,
    ENDPOINT_SLICE,
    LEASE,
    NETWORK_POLICY,
    RUNTIME_CLASS,
    STORAGE_CLASS,
    PRIORITY_CLASS,
    POD_DISRUPTION_BUDGET,
    DEPLOYMENT,
    REPLICA_SET,
    DAEMON_SET,
    STATEFUL_SET,
    ROLE,
    CLUSTER_ROLE,
    ROLE_BINDING,
    CLUSTER_ROLE_BINDING,
    CUSTOM_RESOURCE_DEFINITION,
    TOKEN_REVIEW,
    SELF_SUBJECT_REVIEW,
    SELF_SUBJECT_ACCESS_REVIEW,
    SUBJECT_ACCESS_REVIEW,
    LOCAL_SUBJECT_ACCESS_REVIEW,
    SELF_SUBJECT_RULES_REVIEW,
)
# The kinds of the agent-sandbox API in installation order.
SANDPOOL: Final = (SANDBOX, SANDBOX_TEMPLATE, SANDBOX_WARM_POOL, SANDBOX_CLAIM)

#: How a server registers API groups with kube-apiserver. The embedded API has no aggregation layer.
API_SERVICE: Final = ResourceType("apiregistration.k8s.io", "v1", "APIService", "apiservices", namespaced=False)
#: The APIServices of our groups.
API_SERVICES: Final = tuple(dict.fromkeys(f"{type.version}.{type.group}" for type in SANDPOOL))


@dataclass(frozen=True, slots=True)
class Subresource:
    """The kind of a subresource, if it differs from its resource, and its verbs."""

    verbs: tuple[str, ...]
    kind: str = ""  # "": the kind of the resource it belongs to
    group: str = ""  # group and version of ``kind``; discovery names them only when they differ from the resource's
    version: str = ""


SCALE_KIND: Final = "Scale"
_VIEW: Final = Subresource(("get", "patch", "update"))
_PROXIED: Final = ("create", "delete", "get", "patch", "update")
_CONNECTED: Final = ("create", "get")
_SUBRESOURCES: Final = {
    "binding": Subresource(("create",), "Binding", "", "v1"),
    "ephemeralcontainers": _VIEW,
    "eviction": Subresource(("create",), "Eviction", "policy", "v1"),
    "finalize": Subresource(("update",)),
    "log": Subresource(("get",)),
    "resize": _VIEW,
    "scale": Subresource(("get", "patch", "update"), SCALE_KIND, "autoscaling", "v1"),
    "status": _VIEW,
    "token": Subresource(("create",), "TokenRequest", _AUTHENTICATION, "v1"),
    "attach": Subresource(_CONNECTED, "PodAttachOptions", "", "v1"),
    "exec": Subresource(_CONNECTED, "PodExecOptions", "", "v1"),
    "portforward": Subresource(_CONNECTED, "PodPortForwardOptions", "", "v1"),
}


def subresource(type: ResourceType, name: str) -> Subresource:
    """The subresource ``type/name``. Raises KeyError if no Kubernetes kind has such a subresource."""
    if name == "proxy":
        return Subresource(_PROXIED, f"{type.kind}ProxyOptions", "", "v1")
    return _SUBRESOURCES[name]
