"""Verbs of the API that our own clients never use, for tests of the server: PUT, and DELETE of a collection."""

from __future__ import annotations

from typing import Any

from sandpool.api.resource import Object, ResourceType, SharedObject
from sandpool.kube.client import Client
from sandpool.kube.transport import Request


async def replace(
    client: Client,
    type: ResourceType,
    object: SharedObject,
    namespace: str | None = None,
    *,
    name: str | None = None,
    subresource: str | None = None,
    **query: str,
) -> Object:
    """PUT the whole object. The name in the path defaults to that of the object."""
    path = type.path(namespace, name or object["metadata"]["name"], subresource)
    answer: Object = await client.transport.request(Request("PUT", path, query, object))
    return answer


async def delete_collection(
    client: Client, type: ResourceType, namespace: str | None = None, *, options: Any = None, **query: str
) -> Object:
    answer: Object = await client.transport.request(Request("DELETE", type.path(namespace), query, options))
    return answer
