"""The labels and annotations of the agent-sandbox API: keys and values that clients and other controllers rely on."""

from __future__ import annotations

from typing import Final

from sandpool.api.kinds import AGENTS_GROUP, EXTENSIONS_GROUP

# --- labels ----------------------------------------------------------------------------------------------------------

#: On Pod, Service and PVC: the hash of the sandbox's name. Children are found by it.
SANDBOX_NAME_HASH: Final = "agents.x-k8s.io/sandbox-name-hash"
#: On Sandbox, its pod template and its Pod while a pool owns the sandbox: the hash of the pool's name.
WARM_POOL: Final = "agents.x-k8s.io/warm-pool-sandbox"
#: On SandboxTemplate, Sandbox, pod template and Pod: the hash of the template's name.
TEMPLATE_REF_HASH: Final = "agents.x-k8s.io/sandbox-template-ref-hash"
#: On Sandbox and pod template while a pool owns the sandbox: the hash of the blueprint it was made from.
TEMPLATE_HASH: Final = "agents.x-k8s.io/sandbox-template-hash"
#: Deprecated companion of the former: the hash of the pod template alone. Written, never read.
POD_TEMPLATE_HASH: Final = "agents.x-k8s.io/sandbox-pod-template-hash"
#: On Sandbox: whether it came from a pool or was made for its claim.
LAUNCH_TYPE: Final = "agents.x-k8s.io/launch-type"
#: On SandboxClaim, Sandbox, pod template and Pod: which tool asked for it.
CREATED_BY: Final = "agents.x-k8s.io/created-by"
#: On Sandbox and pod template: the UID of the claim that holds the sandbox.
CLAIM_UID: Final = "agents.x-k8s.io/claim-uid"
#: On a Pod, Service or PVC that nobody owns: "true" allows a sandbox to take it over.
ADOPTABLE: Final = "agents.x-k8s.io/adoptable"

LAUNCH_WARM: Final = "warm"
LAUNCH_COLD: Final = "cold"
CREATED_BY_CONTROLLER: Final = "controller"
CREATED_BY_UNKNOWN: Final = "unknown"
_KNOWN_CREATORS: Final = frozenset({"go-client", "python-client", CREATED_BY_CONTROLLER})

# --- annotations -----------------------------------------------------------------------------------------------------

#: On Sandbox: the name of its pod.
POD_NAME: Final = "agents.x-k8s.io/pod-name"
#: On Sandbox: the name of the template it was made from.
TEMPLATE_REF: Final = "agents.x-k8s.io/sandbox-template-ref"
#: On Pod: the keys that were copied from the pod template, so that they can be taken away again.
PROPAGATED_LABELS: Final = "agents.x-k8s.io/propagated-labels"
PROPAGATED_ANNOTATIONS: Final = "agents.x-k8s.io/propagated-annotations"
#: On SandboxClaim: the sandbox it was given. Long ago this was a label of the same key.
SANDBOX_NAME: Final = "agents.x-k8s.io/sandbox-name"
#: On SandboxClaim: when it was first seen by the controller, by a webhook, and asked for by the client; when it first
#: became ready.
CONTROLLER_FIRST_OBSERVED_AT: Final = "agents.x-k8s.io/controller-first-observed-at"
WEBHOOK_FIRST_OBSERVED_AT: Final = "agents.x-k8s.io/webhook-first-observed-at"
CLIENT_FIRST_REQUESTED_AT: Final = "agents.x-k8s.io/client-first-requested-at"
CLAIM_FIRST_READY_AT: Final = "agents.x-k8s.io/claim-first-ready-at"
#: The value of the last one for a claim that was ready before this was recorded.
FIRST_READY_UNKNOWN: Final = "unknown"
#: On SandboxClaim and Sandbox: W3C trace headers as a JSON map.
TRACE_CONTEXT: Final = "opentelemetry.io/trace-context"
#: On pod template and Pod: whether the cluster autoscaler may remove it. On a pool's Sandbox: the pool's word for its
#: Pod, where the pod template has none.
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
#: On pod template and Pod: "true" lets the node freeze the pod while it waits in a pool. Only our node knows it.
FREEZE_WHILE_WARM: Final = "sandpool.dev/freeze-while-warm"
#: On Node: why pods of a runtime handler cannot run there, as a JSON map. Those that can are labels with this prefix.
UNAVAILABLE_RUNTIMES: Final = "sandpool.dev/unavailable-runtimes"
RUNTIME_PREFIX: Final = "runtime.sandpool.dev/"
#: On Node: the SHA-256 fingerprint of the certificate that the node's own API shows.
KUBELET_CERTIFICATE: Final = "sandpool.dev/kubelet-certificate"

# --- field managers --------------------------------------------------------------------------------------------------

#: The field manager that creates Pods, Services and PVCs of sandboxes.
SANDBOX_FIELD_MANAGER: Final = "sandbox-controller"

_RESERVED_PREFIXES: Final = (f"{AGENTS_GROUP}/", f"{EXTENSIONS_GROUP}/")


def is_reserved_label(key: str) -> bool:
    """Whether the pod template's author has no say about this label of the pod."""
    return key.startswith(_RESERVED_PREFIXES)


def is_reserved_annotation(key: str) -> bool:
    return key.startswith(_RESERVED_PREFIXES) or key == TRACE_CONTEXT


def normal_creator(value: str) -> str:
    """The creator as it is shown on pods, in metrics and in traces, where only known ones have a name."""
    return value if value in _KNOWN_CREATORS else CREATED_BY_UNKNOWN
