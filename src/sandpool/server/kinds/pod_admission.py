"""Admission of new pods: service account, priority, runtime class and tolerations.

kube-apiserver does this in admission plugins (ServiceAccount, Priority, RuntimeClass, DefaultTolerationSeconds). The
ServiceAccount plugin also mounts a token; this server does not, so that a sandbox gets no credentials by default.
"""

from __future__ import annotations

from typing import Final

from sandpool.api.causes import quoted
from sandpool.api.kinds import POD
from sandpool.api.resource import Object
from sandpool.kube.errors import ApiError, forbidden
from sandpool.server.kinds.copy_on_write import fill_absent, put
from sandpool.server.kinds.strategy import ClusterReader

_TOLERATED: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_PREEMPTION: Final = "PreemptLowerPriority"


def admit_pod(pod: Object, old: Object | None, cluster: ClusterReader) -> Object:
    spec = pod["spec"]
    if old is not None:
        return put(pod, "spec", _with_tolerations(spec))
    spec = _with_priority(_with_account(spec, pod, cluster), pod, cluster)
    return put(pod, "spec", _with_runtime_class(_with_tolerations(spec), pod, cluster))


def _refuse(pod: Object, why: str) -> ApiError:
    return forbidden(POD, pod["metadata"].get("name") or "", why)


def _with_account(spec: Object, pod: Object, cluster: ClusterReader) -> Object:
    name = spec.get("serviceAccountName")
    if not name:
        # The default account is created moments after its namespace; a pod need not wait for it.
        return {**spec, "serviceAccountName": "default", "serviceAccount": "default"}
    namespace = pod["metadata"].get("namespace")
    account = cluster.get("serviceaccounts", namespace, name)
    if account is None and name != "default":
        why = f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
        raise _refuse(pod, why)
    if account and account.get("imagePullSecrets") and not spec.get("imagePullSecrets"):
        return {**spec, "imagePullSecrets": account["imagePullSecrets"]}
    return spec


def _with_priority(spec: Object, pod: Object, cluster: ClusterReader) -> Object:
    name = spec.get("priorityClassName")
    if name:
        found = cluster.get("priorityclasses.scheduling.k8s.io", None, name)
        if found is None:
            raise _refuse(pod, f"no PriorityClass with name {name} was found")
    else:
        defaults = [item for item in cluster.objects("priorityclasses.scheduling.k8s.io") if item.get("globalDefault")]
        # A race can leave two defaults; the lower priority does less harm.
        found = min(defaults, key=lambda item: item.get("value") or 0) if defaults else None
    value, policy = (found.get("value") or 0, found.get("preemptionPolicy")) if found else (0, None)
    if spec.get("priority") is not None and spec["priority"] != value:
        raise _refuse(
            pod,
            f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; "
            f"priority admission controller computed {value} from the given PriorityClass name",
        )
    policy = policy or _PREEMPTION
    if spec.get("preemptionPolicy") is not None and spec["preemptionPolicy"] != policy:
        raise _refuse(
            pod,
            f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be provided in pod spec; "
            f"priority admission controller computed {policy} from the given PriorityClass name",
        )
    if found and not name:
        spec = put(spec, "priorityClassName", found["metadata"]["name"])
    return fill_absent(spec, {"priority": value, "preemptionPolicy": policy})


def _with_runtime_class(spec: Object, pod: Object, cluster: ClusterReader) -> Object:
    name, overhead = spec.get("runtimeClassName"), spec.get("overhead")
    if not name:
        if overhead:
            why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
            raise _refuse(pod, why)
        return spec
    found = cluster.get("runtimeclasses.node.k8s.io", None, name)
    if found is None:
        raise _refuse(pod, f"pod rejected: RuntimeClass {quoted(name)} not found")
    fixed = (found.get("overhead") or {}).get("podFixed")
    if overhead and overhead != fixed:
        raise _refuse(pod, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
    if fixed:
        spec = put(spec, "overhead", fixed)
    scheduling = found.get("scheduling") or {}
    if wanted := scheduling.get("nodeSelector"):
        chosen = spec.get("nodeSelector") or {}
        for key, value in wanted.items():
            if chosen.get(key, value) != value:
                why = (
                    f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; "
                    f"pod.spec.nodeSelector[{key}] = {chosen[key]}"
                )
                raise _refuse(pod, why)
        spec = put(spec, "nodeSelector", {**chosen, **wanted})
    if tolerations := scheduling.get("tolerations"):
        present = spec.get("tolerations") or []
        added = [toleration for toleration in tolerations if toleration not in present]
        spec = put(spec, "tolerations", [*present, *added])
    return spec


def _with_tolerations(spec: Object) -> Object:
    """Add the default tolerations: a pod stays for five minutes on a node that is not ready or unreachable."""
    tolerations = spec.get("tolerations") or []
    missing = [
        {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for taint in _TOLERATED
        if not any(
            toleration.get("key") in (taint, "", None) and toleration.get("effect") in ("NoExecute", "", None)
            for toleration in tolerations
        )
    ]
    return {**spec, "tolerations": [*tolerations, *missing]} if missing else spec
