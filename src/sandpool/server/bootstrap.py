"""Initial content of a server: namespaces, RBAC roles, the agent-sandbox CRDs and the token signing key."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sandpool.api.kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    CONFIG_MAP,
    CUSTOM_RESOURCE_DEFINITION,
    NAMESPACE,
    SANDPOOL,
)
from sandpool.api.resource import Object, ResourceType
from sandpool.api.schema.crds import crd
from sandpool.server.auth.bootstrap import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES
from sandpool.server.auth.private_files import write_private
from sandpool.server.controllers.namespaces import initial_namespaces
from sandpool.server.controllers.owner_graph import Ref
from sandpool.server.controllers.system_client import SystemClient

# Extension API servers read from this ConfigMap which CA signs client certificates.
_AUTHENTICATION: Final = "extension-apiserver-authentication"
_CLIENT_CA: Final = "client-ca-file"


async def bootstrap(objects: SystemClient, client_ca: str | None = None) -> None:
    """Create missing objects and update the CRDs of our own kinds. Idempotent.

    ``client_ca`` is the PEM of the CA that signs client certificates, if there is one."""
    wanted = [(NAMESPACE, namespace) for namespace in initial_namespaces()]
    wanted += [(CLUSTER_ROLE, role) for role in CLUSTER_ROLES]
    wanted += [(CLUSTER_ROLE_BINDING, binding) for binding in CLUSTER_ROLE_BINDINGS]
    missing = [(ref, obj) for type, obj in wanted if objects.get(ref := _ref(type, obj)) is None]
    await asyncio.gather(*(objects.create(ref, obj) for ref, obj in missing))
    await asyncio.gather(*(_define(objects, crd(type)) for type in SANDPOOL))
    if client_ca is not None:
        await _publish(objects, client_ca)


async def _define(objects: SystemClient, definition: Object) -> None:
    ref = _ref(CUSTOM_RESOURCE_DEFINITION, definition)
    present = objects.get(ref)
    if present is None:
        await objects.create(ref, definition)
    elif present["spec"] != definition["spec"]:
        await objects.patch(ref, {"spec": definition["spec"]})


async def _publish(objects: SystemClient, client_ca: str) -> None:
    metadata = {"name": _AUTHENTICATION, "namespace": "kube-system"}
    content: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {_CLIENT_CA: client_ca}}
    ref = _ref(CONFIG_MAP, content)
    present = objects.get(ref)
    if present is None:
        await objects.create(ref, content)
    elif (present.get("data") or {}).get(_CLIENT_CA) != client_ca:
        await objects.patch(ref, {"data": content["data"]})


def _ref(type: ResourceType, obj: Object) -> Ref:
    return Ref(type.group_resource, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])


def service_account_key(data_dir: Path) -> ec.EllipticCurvePrivateKey:
    """Load the key that signs service account tokens, or create it on first use."""
    path = data_dir / "service-account.key"
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except FileNotFoundError:
        key = ec.generate_private_key(ec.SECP256R1())
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        write_private(path, key.private_bytes(encoding, form, serialization.NoEncryption()))
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} must hold an EC key")
    return key
