"""API keys: each stands for a tenant with a namespace and a quota, and is a Secret that holds its hash.

A key is random, so its hash needs no salt and no slow function, and the name of its Secret is the beginning of the
hash: looking up a key is one read. Keys in the cache follow the Secrets, so a revoked key stops at once.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections.abc import Mapping
from hashlib import sha256
from random import Random
from typing import Any, Final, NamedTuple, Self

from sandpool.api.kinds import NAMESPACE, SECRET
from sandpool.api.resource import Key, Object, SharedObject
from sandpool.e2b.attempts import Attempts
from sandpool.e2b.errors import Refusal
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.errors import AlreadyExists, NotFound

#: The namespace of the Secrets of keys.
KEY_NAMESPACE: Final = "sandpool-e2b"
#: On Secrets: they are API keys.
KEY_LABEL: Final = "sandpool.dev/e2b-api-key"
#: Sandboxes that a key may have at once, if nothing else is said.
MAX_SANDBOXES: Final = 100

_PREFIX: Final = "e2b_"
_RANDOM_BYTES: Final = 20
_ID_LENGTH: Final = 12
_SECRET_NAME: Final = "endpoint"
_MAX_KEY: Final = 200


class ApiKey(NamedTuple):
    """A key as its administrators see it; the key itself is shown once, when it is made."""

    id: str
    digest: str
    name: str
    namespace: str
    max_sandboxes: int
    created: str

    @classmethod
    def from_object(cls, secret: SharedObject) -> Self:
        metadata, data = secret["metadata"], _decoded(secret.get("data") or {})
        most = data.get("maxSandboxes", "")
        return cls(
            id=metadata["name"].removeprefix("key-"),
            digest=data.get("digest", ""),
            name=data.get("name", ""),
            namespace=data.get("namespace", ""),
            max_sandboxes=int(most) if most.isdecimal() else 0,
            created=metadata.get("creationTimestamp", ""),
        )


class ApiKeys:
    """The keys that the API holds in one namespace."""

    def __init__(self, client: Client, namespace: str = KEY_NAMESPACE) -> None:
        self.client = client
        self.namespace = namespace

    async def create(self, namespace: str, name: str = "", max_sandboxes: int = MAX_SANDBOXES) -> tuple[str, ApiKey]:
        """Make a key for a namespace. Returns the key, which cannot be read again, and its description."""
        await ensure_namespace(self.client, self.namespace)
        key = _PREFIX + secrets.token_hex(_RANDOM_BYTES)
        digest = _digest(key)
        values = {"digest": digest, "name": name, "namespace": namespace, "maxSandboxes": str(max_sandboxes)}
        secret: Object = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": _object_name(digest), "labels": {KEY_LABEL: "true"}},
            "type": "Opaque",
            "data": _encoded(values),
        }
        return key, ApiKey.from_object(await self.client.create(SECRET, secret, self.namespace))

    async def list(self) -> tuple[ApiKey, ...]:
        """All keys, the oldest first."""
        listed = await self.client.list(SECRET, self.namespace, label_selector=KEY_LABEL)
        keys = [ApiKey.from_object(item) for item in listed["items"]]
        return tuple(sorted(keys, key=lambda key: (key.created, key.id)))

    async def revoke(self, key_id: str) -> None:
        """Delete a key. Its sandboxes live until their timeout. Raises ``NotFound``."""
        await self.client.delete(SECRET, f"key-{key_id}", self.namespace)

    async def secret(self) -> bytes:
        """The secret that access tokens of sandboxes are made with; made by the first endpoint."""
        try:
            stored = await self.client.get(SECRET, _SECRET_NAME, self.namespace)
        except NotFound:
            stored = await self._new_secret()
        return _decoded(stored.get("data") or {})["secret"].encode()

    async def _new_secret(self) -> SharedObject:
        await ensure_namespace(self.client, self.namespace)
        made: Object = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": _SECRET_NAME},
            "type": "Opaque",
            "data": _encoded({"secret": secrets.token_hex(32)}),
        }
        try:
            return await self.client.create(SECRET, made, self.namespace)
        except AlreadyExists:
            return await self.client.get(SECRET, _SECRET_NAME, self.namespace)


class Authenticator:
    """Finds the tenant of a key. ``run`` keeps the keys up to date; ``attempts`` limits the reads of others."""

    def __init__(self, keys: ApiKeys, attempts: Attempts, clock: Clock, rng: Random) -> None:
        self.keys = keys
        self.attempts = attempts
        self._cache: Cache[ApiKey] = Cache(ApiKey.from_object, name="API keys")
        self._reflector = Reflector(
            keys.client, SECRET, self._cache, clock, rng, namespace=keys.namespace, label_selector=KEY_LABEL
        )

    async def run(self) -> None:
        await self._reflector.run()

    async def synced(self) -> None:
        await self._reflector.synced.wait()

    async def authenticate(self, key: str | None, address: str) -> ApiKey:
        """The tenant of a key that a client at ``address`` has sent. Raises ``Refusal``."""
        if not key:
            raise Refusal(401, "an API key is needed, in the header X-API-Key; make one with: sandpool e2b key create")
        if not key.startswith(_PREFIX) or len(key) > _MAX_KEY:
            raise _unknown()
        digest = _digest(key)
        found = self._cache.get(Key(self.keys.namespace, _object_name(digest)))
        if found is None:  # made a moment ago, before the watch knows it
            attempt = self.attempts.begin(address)
            try:
                secret = await self.keys.client.get(SECRET, _object_name(digest), self.keys.namespace)
            except NotFound:
                raise _unknown() from None
            if KEY_LABEL not in (secret["metadata"].get("labels") or {}):
                raise _unknown()
            found = ApiKey.from_object(secret)
            if hmac.compare_digest(found.digest, digest):
                attempt.succeeded()
        if not hmac.compare_digest(found.digest, digest) or not found.namespace:
            raise _unknown()
        return found


def is_of(key: str, described: ApiKey) -> bool:
    """Whether this is the key that a description is about."""
    return hmac.compare_digest(described.digest, _digest(key))


def _unknown() -> Refusal:
    return Refusal(401, "the API key is not known or was revoked")


def _digest(key: str) -> str:
    return sha256(key.encode(errors="replace")).hexdigest()


def _object_name(digest: str) -> str:
    return f"key-{digest[:_ID_LENGTH]}"


def _encoded(values: Mapping[str, str]) -> dict[str, str]:
    return {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}


def _decoded(data: Mapping[str, Any]) -> dict[str, str]:
    decoded = {}
    for name, value in data.items():
        try:
            decoded[name] = base64.b64decode(value, validate=True).decode()
        except (binascii.Error, ValueError):
            continue  # not ours
    return decoded


async def ensure_namespace(client: Client, name: str) -> None:
    try:
        await client.get(NAMESPACE, name)
    except NotFound:
        made: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        try:
            await client.create(NAMESPACE, made)
        except AlreadyExists:
            return  # another endpoint made it
