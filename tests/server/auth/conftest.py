"""Service accounts without a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from sandpool.server.auth.rbac import RbacAuthorizer
from sandpool.server.auth.service_accounts import ServiceAccountTokens

KEY = ec.generate_private_key(ec.SECP256R1())


class World:
    """The objects that exist, the time it is, and tokens about both."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 16, 8, 0, 0, tzinfo=UTC)
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.account = self.add("ServiceAccount", "ns", "robot")
        self.tokens = ServiceAccountTokens(KEY, self.find, clock=self)

    def add(self, kind: str, namespace: str, name: str, **more: Any) -> dict[str, Any]:
        metadata = {"name": name, "uid": f"{kind}-{name}-uid"}
        if namespace:
            metadata["namespace"] = namespace
        obj = {"kind": kind, "metadata": metadata, **more}
        self.objects[kind, namespace, name] = obj
        return obj

    def find(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        return self.objects.get((kind, namespace, name))

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    def pass_time(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@pytest.fixture
def world() -> World:
    return World()


class Policy:
    """RBAC objects, written briefly."""

    def __init__(self) -> None:
        self.version = 0
        self._changed: set[str] = set()
        self.reads = 0  # number of object reads
        self._objects: dict[str, list[dict[str, Any]]] = {}

    def _add(self, kind: str, name: str, namespace: str = "", **more: Any) -> dict[str, Any]:
        metadata: dict[str, Any] = {"name": name}
        if namespace:
            metadata["namespace"] = namespace
        obj = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata, **more}
        self._objects.setdefault(f"{kind}/{namespace}", []).append(obj)
        self.change(namespace)
        return obj

    def change(self, namespace: str) -> None:
        self.version += 1
        self._changed.add(namespace)

    def take_changed(self) -> set[str]:
        changed, self._changed = self._changed, set()
        return changed

    def include(self, obj: dict[str, Any]) -> None:
        namespace = obj["metadata"].get("namespace", "")
        self._objects.setdefault(f"{obj['kind']}/{namespace}", []).append(obj)
        self.change(namespace)

    def role(self, name: str, *rules: dict[str, Any], namespace: str = "", **more: Any) -> dict[str, Any]:
        return self._add("Role" if namespace else "ClusterRole", name, namespace, rules=list(rules), **more)

    def label(self, role: dict[str, Any], **labels: str) -> None:
        role["metadata"]["labels"] = labels
        self.change(role["metadata"].get("namespace", ""))

    def bind(self, role: str, *subjects: str, namespace: str = "", local_role: bool = False) -> dict[str, Any]:
        """Subjects: ``user:x``, ``group:x`` or ``sa:namespace/x``."""
        kinds = {"user": "User", "group": "Group", "sa": "ServiceAccount"}
        listed = []
        for subject in subjects:
            kind, _, name = subject.partition(":")
            place, _, account = name.rpartition("/") if kind == "sa" else ("", "", name)
            listed.append({"kind": kinds[kind], "name": account, **({"namespace": place} if place else {})})
        return self._add(
            "RoleBinding" if namespace else "ClusterRoleBinding",
            f"{role}-binding",
            namespace,
            roleRef={
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Role" if local_role else "ClusterRole",
                "name": role,
            },
            subjects=listed,
        )

    def _list(self, key: str) -> list[dict[str, Any]]:
        self.reads += 1
        return self._objects.get(key, [])

    def cluster_roles(self) -> list[dict[str, Any]]:
        return self._list("ClusterRole/")

    def cluster_role_bindings(self) -> list[dict[str, Any]]:
        return self._list("ClusterRoleBinding/")

    def roles(self, namespace: str) -> list[dict[str, Any]]:
        return self._list(f"Role/{namespace}")

    def role_bindings(self, namespace: str) -> list[dict[str, Any]]:
        return self._list(f"RoleBinding/{namespace}")


@pytest.fixture
def policy() -> Policy:
    return Policy()


@pytest.fixture
def authorizer(policy: Policy) -> RbacAuthorizer:
    return RbacAuthorizer(policy)
