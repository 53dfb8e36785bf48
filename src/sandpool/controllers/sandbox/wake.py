"""Which changes wake a sandbox's reconcile.

The kubelet reports half a dozen changes of a pod until it is ready. Those that would change what is written at once
wake at once; those that only a slow launch shows are looked at when the status may be written anyway, so a launch that
is not slow never spends a pass on them.
"""

from __future__ import annotations

from sandpool.api.conditions import FALSE
from sandpool.api.views import PodView, SandboxView


def sandbox_reads(sandbox: SandboxView) -> tuple[object, ...]:
    """What a pass reads of the sandbox. Its status is ours, and the echo of our writes is recognised as such. But a
    status that comes at another time is one we do not know of: the answer was lost, or a predecessor wrote it with its
    last breath. Nobody else would ever put it right."""
    return (
        sandbox.uid,
        sandbox.generation,
        sandbox.deleting,
        sandbox.owner,
        sandbox.labels,
        sandbox.annotations,
        sandbox.status,
    )


def pod_reads_at_once(pod: PodView) -> tuple[object, ...]:
    """What of a pod decides about writes, or about a status that is written at once."""
    scheduling = pod.scheduling
    serving = (pod.ips, pod.node_name) if pod.ready else None
    return (
        pod.uid,
        pod.deleting,
        pod.owner,
        pod.labels,
        pod.annotations,
        pod.phase if pod.ended else None,
        serving,
        scheduling.reason if scheduling is not None and scheduling.status == FALSE else None,
    )


def pod_reads_later(pod: PodView) -> tuple[object, ...]:
    """What of a pod only the status of a slow launch shows."""
    return pod.phase, pod.ips, pod.node_name, pod.scheduling
