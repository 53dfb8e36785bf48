"""Objects, clients and process statistics that several benchmarks share."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import AsyncIterator
from pathlib import Path

from sandpool.api.kinds import SANDBOX, SANDPOOL
from sandpool.api.resource import Object
from sandpool.api.schema.crds import crd
from sandpool.kube.client import Client
from sandpool.kube.http import HttpTransport
from sandpool.kube.kubeconfig import load


def sandbox(name: str, containers: int = 2) -> Object:
    """Return a Sandbox of the usual size: environment, probes, a volume; about 3 KB of JSON with two containers."""

    def container(which: str) -> Object:
        return {
            "name": which,
            "image": f"registry.example/agents/{which}:1.4.2",
            "command": ["/usr/bin/python3", "-m", "agent.runtime"],
            "env": [{"name": f"SETTING_{i}", "value": f"value of setting {i}"} for i in range(12)],
            "ports": [{"containerPort": 8888, "protocol": "TCP", "name": "http"}],
            "readinessProbe": {"httpGet": {"path": "/", "port": 8888}, "periodSeconds": 1},
            "resources": {"limits": {"cpu": "1", "memory": "512Mi"}, "requests": {"cpu": "100m", "memory": "128Mi"}},
            "securityContext": {"runAsUser": 1000, "allowPrivilegeEscalation": False},
            "volumeMounts": [{"name": "work", "mountPath": "/work"}],
        }

    return {
        "apiVersion": SANDBOX.api_version,
        "kind": SANDBOX.kind,
        "metadata": {"name": name, "labels": {"app": "bench", "agents.x-k8s.io/warm-pool-sandbox": "59733166"}},
        "spec": {
            "podTemplate": {
                "metadata": {"labels": {"app": "bench"}},
                "spec": {
                    "containers": [container(which) for which in ("runtime", "sidecar")[:containers]],
                    "volumes": [{"name": "work", "emptyDir": {}}],
                },
            },
        },
    }


@contextlib.asynccontextmanager
async def client_of(kubeconfig: Path) -> AsyncIterator[Client]:
    client = Client(HttpTransport(load(kubeconfig)), field_manager="bench")
    try:
        yield client
    finally:
        await client.close()


def definitions() -> list[Object]:
    return [crd(type) for type in SANDPOOL]


def cpu_seconds(pid: int) -> float:
    """Return the user and system CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def starved_seconds(pid: int) -> float:
    """Return how long the threads of a process waited for a CPU: the share of its latencies that others on the machine
    caused. Ended threads do not count."""
    nanoseconds = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):  # it ends this very moment
            nanoseconds += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[1])
    return nanoseconds / 1e9


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


_TICKS = 100  # USER_HZ, the same on every Linux machine
