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
#: On Sandbox and pod template while a pool owns the sandbox: the hash of the template revision it was created from.
TEMPLATE_HASH: Final = "agents.x-k8s.io/sandbox-template-hash"
#: Deprecated: the hash of the pod template alone. Written, never read.
POD_TEMPLATE_HASH: Final = "agents.x-k8s.io/sandbox-pod-template-hash"
#: On Sandbox: warm if it came from a pool, cold if it was created for its claim.
LAUNCH_TYPE: Final = "agents.x-k8s.io/launch-type"
#: On SandboxClaim, Sandbox, pod template and Pod: which tool created it.
CREATED_BY: Final = "agents.x-k8s.io/created-by"
#: On Sandbox and pod template: the UID of the claim that holds the sandbox.
CLAIM_UID: Final = "agents.x-k8s.io/claim-uid"
#: On a Pod, Service or PVC without a controller: "true" allows a sandbox to adopt it.
ADOPTABLE: Final = "agents.x-k8s.io/adoptable"

LAUNCH_WARM: Final = "warm"
LAUNCH_COLD: Final = "cold"
CREATED_BY_CONTROLLER: Final = "controller"
CREATED_BY_UNKNOWN: Final = "unknown"
_KNOWN_CREATORS: Final = frozenset({"go-client", "python-client", CREATED_BY_CONTROLLER})

# --- annotations -----------------------------------------------------------------------------------------------------

#: On Sandbox: the name of its pod.
POD_NAME: Final = "agents.x-k8s.io/pod-name"
#: On Sandbox: the name of the template it was created from or, if its variables are bound late, adopted with.
TEMPLATE_REF: Final = "agents.x-k8s.io/sandbox-template-ref"
#: On Pod: the keys that were copied from the pod template, so that they can be removed again.
PROPAGATED_LABELS: Final = "agents.x-k8s.io/propagated-labels"
PROPAGATED_ANNOTATIONS: Final = "agents.x-k8s.io/propagated-annotations"
#: On SandboxClaim: the assigned sandbox. Early versions used a label with the same key.
SANDBOX_NAME: Final = "agents.x-k8s.io/sandbox-name"
#: On SandboxClaim: when the controller first observed it, when a webhook first observed it, when the client requested
#: it, and when it first became ready.
CONTROLLER_FIRST_OBSERVED_AT: Final = "agents.x-k8s.io/controller-first-observed-at"
WEBHOOK_FIRST_OBSERVED_AT: Final = "agents.x-k8s.io/webhook-first-observed-at"
CLIENT_FIRST_REQUESTED_AT: Final = "agents.x-k8s.io/client-first-requested-at"
CLAIM_FIRST_READY_AT: Final = "agents.x-k8s.io/claim-first-ready-at"
#: Value of CLAIM_FIRST_READY_AT for a claim that was ready before the annotation existed.
FIRST_READY_UNKNOWN: Final = "unknown"
#: On SandboxClaim and Sandbox: W3C trace headers as a JSON map.
TRACE_CONTEXT: Final = "opentelemetry.io/trace-context"
#: On pod template and Pod: whether the cluster autoscaler may remove it. On a pool's Sandbox: the
#: pool's default for its Pod, used if the pod template has no value.
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
#: On pod template and Pod: "true" lets the node freeze the pod while a pool owns it. Only Sandpool's node supports it.
FREEZE_WHILE_WARM: Final = "sandpool.dev/freeze-while-warm"
#: On pod template and Pod: for how long a sandbox is not used before it falls asleep (``api.sleep``): before its
#: processes are frozen, and before its pod is deleted. Only Sandpool's node supports them.
IDLE_FREEZE_AFTER: Final = "sandpool.dev/idle-freeze-after"
IDLE_SUSPEND_AFTER: Final = "sandpool.dev/idle-suspend-after"
#: On Sandbox: since when it sleeps. It marks a sandbox that was suspended because it was not used: the next request
#: resumes it. A sandbox that a user has suspended does not have it.
ASLEEP_SINCE: Final = "sandpool.dev/asleep-since"
#: On pod template and Pod: the CPU that an idle sandbox may use, as a quantity of cores.
IDLE_CPU: Final = "sandpool.dev/idle-cpu"
#: On pod template and Pod: where its containers' writes to their roots are kept. "Memory" keeps them in memory,
#: any other value on disk. Only Sandpool's node supports it.
ROOT_MEDIUM: Final = "sandpool.dev/root-medium"
IN_MEMORY: Final = "Memory"
#: On pod template and Pod: "false" keeps the server of the runtime API out of a sandbox whose image does not have it.
#: Only Sandpool's node supports it.
INJECT_RUNTIME: Final = "sandpool.dev/inject-runtime"
#: On SandboxWarmPool: how long a claim lives that does not say it, after its creation and after its pod has finished,
#: and how long any claim waits for its first sandbox. Durations such as 30m or 1h30m.
CLAIM_TTL: Final = "sandpool.dev/claim-ttl"
CLAIM_TTL_AFTER_FINISHED: Final = "sandpool.dev/claim-ttl-after-finished"
CLAIM_UNBOUND_TTL: Final = "sandpool.dev/claim-unbound-ttl"
#: On Namespace: how many of its claims have a sandbox at a time, and how many warm sandboxes all of its pools keep
#: together. Whole numbers, or "unlimited".
MAX_CLAIMS: Final = "sandpool.dev/max-claims"
MAX_WARM_SANDBOXES: Final = "sandpool.dev/max-warm-sandboxes"
#: On SandboxTemplate: "true" lets a claim with variables have a warm sandbox, to which they are handed before the claim
#: is Ready. Processes that the template starts do not see them.
LATE_BINDING: Final = "sandpool.dev/late-binding"
#: On Sandbox, and on pods that are created for it later: "true" if the variables of its claim are handed over and are
#: not in its pod.
LATE_BOUND: Final = "sandpool.dev/late-bound"
#: With the storage ``aggregated``. On the leader lease: the volume of the sandboxes, and how far it was written. On a
#: Pod, Service or PVC: the volume, and its revision when the object was created.
VOLUME_RECORD: Final = "sandpool.dev/volume-record"
VOLUME_STAMP: Final = "sandpool.dev/volume-revision"
#: On SandboxTemplate: the spec before the last change that a user made through the service layer, as JSON.
PREVIOUS_REVISION: Final = "sandpool.dev/previous-revision"
#: On SandboxClaim: "true" if it belongs to a running `sandpool run` and is deleted with it.
RUN: Final = "sandpool.dev/run"
#: On Node: a JSON map from each unavailable runtime handler to the reason. Available handlers are labels with
#: RUNTIME_PREFIX.
UNAVAILABLE_RUNTIMES: Final = "sandpool.dev/unavailable-runtimes"
RUNTIME_PREFIX: Final = "runtime.sandpool.dev/"
#: On Node: "true" if it is simulated, and no pod runs anything.
SIMULATED_NODE: Final = "sandpool.dev/simulated"
#: On Node: the SHA-256 fingerprint of the serving certificate of the node's API.
KUBELET_CERTIFICATE: Final = "sandpool.dev/kubelet-certificate"

# --- field managers --------------------------------------------------------------------------------------------------

#: The field manager that creates Pods, Services and PVCs of sandboxes.
SANDBOX_FIELD_MANAGER: Final = "sandbox-controller"

_RESERVED_PREFIXES: Final = (f"{AGENTS_GROUP}/", f"{EXTENSIONS_GROUP}/")


def is_reserved_label(key: str) -> bool:
    """Whether the controllers own this label of the pod, so that a pod template cannot set it."""
    return key.startswith(_RESERVED_PREFIXES)


def is_reserved_annotation(key: str) -> bool:
    return key.startswith(_RESERVED_PREFIXES) or key == TRACE_CONTEXT


def normal_creator(value: str) -> str:
    """The creator for pods, metrics and traces: a known creator, or ``unknown``."""
    return value if value in _KNOWN_CREATORS else CREATED_BY_UNKNOWN
