"""Claims that were made through the endpoint, by the ID that clients know, and the tenants they belong to.

The name of a claim is the ID of its sandbox. Clients name only that ID when they run commands, not their namespace, so
the endpoint holds all its claims in a cache that one watch keeps up to date. The claim carries everything else that
must outlive the endpoint, in a label and an annotation.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from random import Random
from typing import Any, Final, NamedTuple, Self

import orjson

from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.resource import Key, SharedObject
from sandpool.api.views.times import parse_time
from sandpool.engine.cache.reflector import Reflector
from sandpool.engine.cache.store import Cache
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client
from sandpool.kube.transport import WatchEvent
from sandpool.service.claims import Claim, Claims

#: On claims: the ID of the API key that made it.
KEY_LABEL: Final = "sandpool.dev/e2b-key"
#: On claims: the rest of what the client asked for, as JSON.
REQUEST_ANNOTATION: Final = "sandpool.dev/e2b-request"

_BY_ID: Final = "id"
_BY_KEY: Final = "key"
_ID_LENGTH: Final = 20
_ID_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """The request of a client for a sandbox; later responses repeat it."""

    template: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    public_ports: bool = True  # whether get_host works without a token
    has_variables: bool = False  # they are in a Secret

    def to_annotation(self) -> str:
        return orjson.dumps(
            {
                "template": self.template,
                "metadata": dict(self.metadata),
                "publicPorts": self.public_ports,
                "hasVariables": self.has_variables,
            }
        ).decode()

    @classmethod
    def from_annotation(cls, text: str) -> Self:
        """Users of the API may write anything there."""
        try:
            document = orjson.loads(text)
            metadata = {str(name): str(value) for name, value in document["metadata"].items()}
            return cls(
                str(document["template"]), metadata, document["publicPorts"] is True, document["hasVariables"] is True
            )
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            return cls("", public_ports=False)


class SandboxClaim(NamedTuple):
    """A claim of the endpoint. ``end`` is when its sandbox is deleted."""

    claim: Claim
    key: str  # the ID of the API key
    request: SandboxRequest
    end: datetime

    @classmethod
    def from_object(cls, claim: SharedObject) -> Self:
        metadata, spec = claim["metadata"], claim.get("spec") or {}
        end = (spec.get("lifecycle") or {}).get("shutdownTime")
        return cls(
            claim=Claim.from_object(dict(claim)),
            key=(metadata.get("labels") or {}).get(KEY_LABEL, ""),
            request=SandboxRequest.from_annotation((metadata.get("annotations") or {}).get(REQUEST_ANNOTATION, "")),
            end=parse_time(end) or datetime.max.replace(tzinfo=UTC),
        )

    @property
    def id(self) -> str:
        return self.claim.name

    @property
    def started(self) -> datetime:
        return datetime.fromisoformat(self.claim.created)

    @property
    def was_handed_out(self) -> bool:
        """Whether it has a sandbox. It need not be ready: it may be paused, or its readiness probe fails."""
        return bool(self.claim.sandbox)

    @property
    def is_deleted(self) -> bool:
        return "deletionTimestamp" in self.claim.object["metadata"]


class ClaimCache:
    """The claims of all tenants. ``run`` keeps them up to date."""

    def __init__(self, client: Client, clock: Clock, rng: Random) -> None:
        self.client = client
        self._cache: Cache[SandboxClaim] = Cache(SandboxClaim.from_object, name="claims of the endpoint")
        self._cache.add_index(_BY_ID, lambda claim: () if claim.is_deleted else (claim.id,))
        self._cache.add_index(_BY_KEY, lambda claim: () if claim.is_deleted else (claim.key,))
        self._cache.subscribe(self._deliver)
        self._reflector = Reflector(client, SANDBOX_CLAIM, self._cache, clock, rng, label_selector=KEY_LABEL)
        self._waiting: defaultdict[Key, set[asyncio.Queue[WatchEvent]]] = defaultdict(set)

    async def run(self) -> None:
        await self._reflector.run()

    async def synced(self) -> None:
        await self._reflector.synced.wait()

    def find(self, sandbox_id: str) -> SandboxClaim | None:
        """The claim with an ID. IDs are random, so a second one in another namespace was made by a user who knew the
        first, to deceive or to hide it: it is the younger one. Of two that began in the same second there is none."""
        found = sorted(self._cache.by_index(_BY_ID, sandbox_id), key=_created)
        if not found or (len(found) > 1 and _created(found[0]) == _created(found[1])):
            return None
        return found[0]

    def find_of(self, key: str, namespace: str, sandbox_id: str) -> SandboxClaim | None:
        """The claim with an ID that an API key of a namespace made."""
        found = self._cache.get(Key(namespace, sandbox_id))
        return found if found is not None and found.key == key and not found.is_deleted else None

    def of_key(self, key: str, namespace: str) -> tuple[SandboxClaim, ...]:
        """The claims that an API key of a namespace made. Users of other namespaces can set the label, too."""
        return tuple(each for each in self._cache.by_index(_BY_KEY, key) if each.claim.namespace == namespace)

    def all(self) -> tuple[SandboxClaim, ...]:
        return tuple(claim for claim in self._cache if not claim.is_deleted)

    def on_end(self, handler: Callable[[str], None]) -> None:
        """Call ``handler`` with the UID of every claim that is gone."""

        def changed(_: Key, old: SandboxClaim | None, new: SandboxClaim | None) -> None:
            if old is not None and new is None:
                handler(old.claim.uid)

        self._cache.subscribe(changed)

    def claims(self, namespace: str) -> Claims:
        """The claims of a namespace, to create them and wait for them. All waits share one watch."""
        return Claims(self.client, namespace, partial(self._events, namespace))

    def record(self, claim: SharedObject) -> SandboxClaim:
        """Take in a claim that was written, before the watch brings it."""
        self._cache.record_write(claim)
        return SandboxClaim.from_object(claim)

    def forget(self, claim: SandboxClaim, response: SharedObject | None) -> None:
        """Take in the answer to the deletion of a claim."""
        self._cache.record_deletion(Key(claim.claim.namespace, claim.id), claim.claim.uid, response)

    async def _events(self, namespace: str, name: str, version: str | None) -> AsyncIterator[WatchEvent]:
        key = Key(namespace, name)
        queue: asyncio.Queue[WatchEvent] = asyncio.Queue()
        if (known := self._cache.get(key)) is not None and self._cache.version(key) != version:
            queue.put_nowait(WatchEvent("MODIFIED", known.claim.object))
        self._waiting[key].add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._waiting[key].discard(queue)
            if not self._waiting[key]:
                del self._waiting[key]

    def _deliver(self, key: Key, old: SandboxClaim | None, new: SandboxClaim | None) -> None:
        shown = new or old
        assert shown is not None
        for queue in self._waiting.get(key, ()):
            queue.put_nowait(WatchEvent("DELETED" if new is None else "MODIFIED", shown.claim.object))


def _created(claim: SandboxClaim) -> str:
    return claim.claim.created


def new_id() -> str:
    """An ID that cannot be guessed: it is a part of the address of the sandbox's ports."""
    number = int.from_bytes(os.urandom(_ID_LENGTH), "big")
    letters = []
    for _ in range(_ID_LENGTH - 1):
        number, letter = divmod(number, len(_ID_LETTERS))
        letters.append(_ID_LETTERS[letter])
    return "i" + "".join(letters)


def repeatable_id(secret: bytes, key: str, idempotency_key: str) -> str:
    """The ID that every request of a tenant with the same idempotency key gets."""
    digest = hmac.new(secret, f"id:{key}:{idempotency_key}".encode(), sha256).digest()
    return "i" + base64.b32encode(digest).decode().lower()[: _ID_LENGTH - 1]


def checked_texts(given: Any, what: str, most: int) -> dict[str, str]:
    """A map of texts from a request. Raises ``ValueError``."""
    if given is None:
        return {}
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise ValueError(f"{what} must be a map of texts")
    if sum(len(name) + len(value) for name, value in given.items()) > most:
        raise ValueError(f"{what} must be smaller than {most >> 10} KiB")
    return given
