"""Pod networking: a network namespace, an address, a firewall and DNS for every pod.

``routed`` is the full network. ``isolated``, ``rootless`` and ``loopback`` stand in where privileges are missing.
"""
