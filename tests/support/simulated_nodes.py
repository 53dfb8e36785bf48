"""Changes of mind of a simulated node."""

from __future__ import annotations

from sandpool.node.simulated import SimulatedNode


def reconsider(node: SimulatedNode) -> None:
    """Schedule pods again that found no node. Call it after changing their ``fate``."""
    for pod in node.pods:
        if not pod.node_name and not pod.deleting and node._tasks[pod.uid].done():
            node._start_task(pod, node._drive)
