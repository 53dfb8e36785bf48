"""Operations of users on sandboxes: claim, run, copy, forward, suspend, scale. One layer for all surfaces.

The command line uses it; it depends on no surface. ``Service`` is the entrance. It talks to any Kubernetes API
through ``kube.client`` and ``kube.pod_client``, imports little, and its errors say what to do.
"""
