"""The default ClusterRoles and ClusterRoleBindings of a Kubernetes cluster.

``admin``, ``edit`` and ``view`` have no rules of their own: they aggregate every ClusterRole with their label, so a
user's ClusterRole for a CRD extends them. The roles of Kubernetes components (scheduler, kubelet, controllers) are left
out, because none of them runs here.
"""

from __future__ import annotations

from collections.abc import Sequence

from sandpool.api.resource import Object

_GROUP = "rbac.authorization.k8s.io"
_READ = ["get", "list", "watch"]
_WRITE = ["create", "delete", "deletecollection", "patch", "update"]
_READ_WRITE = sorted([*_READ, *_WRITE])
_HEALTH = ["/healthz", "/livez", "/readyz", "/version", "/version/"]
_DISCOVERY = ["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*"]


def _on(groups: str | Sequence[str], resources: str, verbs: list[str]) -> Object:
    groups = [groups] if isinstance(groups, str) else list(groups)
    return {"verbs": verbs, "apiGroups": groups, "resources": resources.split()}


def _urls(urls: list[str], verbs: Sequence[str] = ("get",)) -> Object:
    return {"verbs": list(verbs), "nonResourceURLs": urls}


_VIEW = [
    _on(
        "",
        "configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods replicationcontrollers "
        "replicationcontrollers/scale serviceaccounts services services/status",
        _READ,
    ),
    _on(
        "",
        "bindings limitranges namespaces/status pods/log pods/status replicationcontrollers/status resourcequotas "
        "resourcequotas/status",
        _READ,
    ),
    _on("", "namespaces", _READ),
    _on(("", "events.k8s.io"), "events", _READ),
    _on("discovery.k8s.io", "endpointslices", _READ),
    _on(
        "apps",
        "controllerrevisions daemonsets daemonsets/status deployments deployments/scale deployments/status replicasets "
        "replicasets/scale replicasets/status statefulsets statefulsets/scale statefulsets/status",
        _READ,
    ),
    _on("autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status", _READ),
    _on("batch", "cronjobs cronjobs/status jobs jobs/status", _READ),
    _on(
        "extensions",
        "daemonsets daemonsets/status deployments deployments/scale deployments/status ingresses ingresses/status "
        "networkpolicies replicasets replicasets/scale replicasets/status replicationcontrollers/scale",
        _READ,
    ),
    _on("policy", "poddisruptionbudgets poddisruptionbudgets/status", _READ),
    _on("networking.k8s.io", "ingresses ingresses/status networkpolicies", _READ),
    _on("resource.k8s.io", "resourceclaims resourceclaims/status resourceclaimtemplates", _READ),
]

_EDIT = [
    _on("", "pods/attach pods/exec pods/portforward pods/proxy secrets services/proxy", _READ),
    _on("", "serviceaccounts", ["impersonate"]),
    _on("", "pods pods/attach pods/exec pods/portforward pods/proxy", _WRITE),
    _on("", "pods/eviction", ["create"]),
    _on(
        "",
        "configmaps persistentvolumeclaims replicationcontrollers replicationcontrollers/scale secrets "
        "serviceaccounts services services/proxy",
        _WRITE,
    ),
    _on("", "serviceaccounts/token", ["create"]),
    _on(("", "events.k8s.io"), "events", _WRITE),
    _on(
        "apps",
        "daemonsets deployments deployments/rollback deployments/scale replicasets replicasets/scale statefulsets "
        "statefulsets/scale",
        _WRITE,
    ),
    _on("autoscaling", "horizontalpodautoscalers", _WRITE),
    _on("batch", "cronjobs jobs", _WRITE),
    _on(
        "extensions",
        "daemonsets deployments deployments/rollback deployments/scale ingresses networkpolicies replicasets "
        "replicasets/scale replicationcontrollers/scale",
        _WRITE,
    ),
    _on("policy", "poddisruptionbudgets", _WRITE),
    _on("networking.k8s.io", "ingresses networkpolicies", _WRITE),
    _on("coordination.k8s.io", "leases", _READ_WRITE),
    _on("resource.k8s.io", "resourceclaims resourceclaimtemplates", _WRITE),
]

_ADMIN = [
    _on("authorization.k8s.io", "localsubjectaccessreviews", ["create"]),
    _on(_GROUP, "rolebindings roles", _READ_WRITE),
]


def _metadata(name: str, aggregate_to: str = "") -> Object:
    labels = {"kubernetes.io/bootstrapping": "rbac-defaults"}
    if aggregate_to:
        labels[f"{_GROUP}/aggregate-to-{aggregate_to}"] = "true"
    return {
        "name": name,
        "labels": labels,
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
    }


def _role(name: str, rules: list[Object], aggregate_to: str = "") -> Object:
    return {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "ClusterRole",
        "metadata": _metadata(name, aggregate_to),
        "rules": rules,
    }


def _aggregated(name: str, aggregate_to: str = "") -> Object:
    selector = {"matchLabels": {f"{_GROUP}/aggregate-to-{name}": "true"}}
    return {**_role(name, [], aggregate_to), "aggregationRule": {"clusterRoleSelectors": [selector]}}


def _binding(role: str, *groups: str) -> Object:
    return {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": _metadata(role),
        "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "Group", "apiGroup": _GROUP, "name": group} for group in groups],
    }


CLUSTER_ROLES: tuple[Object, ...] = (
    _role("cluster-admin", [_on("*", "*", ["*"]), _urls(["*"], ["*"])]),
    _aggregated("admin"),
    _aggregated("edit", aggregate_to="admin"),
    _aggregated("view", aggregate_to="edit"),
    _role("system:aggregate-to-admin", _ADMIN, aggregate_to="admin"),
    _role("system:aggregate-to-edit", _EDIT, aggregate_to="edit"),
    _role("system:aggregate-to-view", _VIEW, aggregate_to="view"),
    _role(
        "system:basic-user",
        [
            _on("authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews", ["create"]),
            _on("authentication.k8s.io", "selfsubjectreviews", ["create"]),
        ],
    ),
    _role("system:discovery", [_urls(sorted([*_DISCOVERY, *_HEALTH]))]),
    _role("system:public-info-viewer", [_urls(_HEALTH)]),
)

CLUSTER_ROLE_BINDINGS: tuple[Object, ...] = (
    _binding("cluster-admin", "system:masters"),
    _binding("system:basic-user", "system:authenticated"),
    _binding("system:discovery", "system:authenticated"),
    _binding("system:public-info-viewer", "system:authenticated", "system:unauthenticated"),
)
