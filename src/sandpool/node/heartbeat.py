"""Maintains the Node object of this machine and renews its Lease every ten seconds.

The Lease is the sign of life, because it is small. The Node itself is written when it changes, every five minutes, and
after a silence: the control plane marks a silent node NotReady, and only the node itself marks it Ready again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from sandpool.api.kinds import LEASE, NODE, NODE_LEASES
from sandpool.api.resource import Object, SharedObject
from sandpool.engine.clock import Clock
from sandpool.kube.client import Client, MergePatch, StrategicPatch
from sandpool.kube.errors import AlreadyExists, ApiError, NotFound
from sandpool.node.machine import Machine, Remaining
from sandpool.node.registration import (
    NodeCapabilities,
    RegistrationOptions,
    conditions,
    lease,
    lease_spec,
    new_node,
    node_metadata,
    node_status,
    stopped,
)

_log = logging.getLogger(__name__)

PERIOD: Final = 10.0
# Interval of Node writes without any change.
_STATUS_PERIOD: Final = 300.0
# After this silence the control plane may have marked the node NotReady. Its own timeout is longer.
_SILENCE: Final = timedelta(seconds=2 * PERIOD)


class Heartbeat:
    """``capabilities`` returns what the node can do now, ``remaining`` what is left of the machine."""

    def __init__(
        self,
        client: Client,
        clock: Clock,
        machine: Machine,
        registration: RegistrationOptions,
        capabilities: Callable[[], NodeCapabilities],
        remaining: Callable[[], Remaining],
    ) -> None:
        self.client = client
        self.clock = clock
        self.machine = machine
        self.registration = registration
        self.capabilities = capabilities
        self.remaining = remaining
        self._node: SharedObject = {}
        self._last_conditions: list[Object] = []  # as last written, without times
        self._written_at = 0.0
        # Last successful contact, in wall-clock time, which continues while the machine is suspended.
        self._last_contact = clock.now()

    async def register(self) -> None:
        """Create the Node, or update the existing one. Raises errors of the API."""
        try:
            self._node = await self.client.create(NODE, new_node(self.machine, self.registration, self.capabilities()))
        except AlreadyExists:
            metadata = node_metadata(self.machine, self.registration, self.capabilities())
            self._node = await self.client.patch(NODE, self.registration.name, MergePatch({"metadata": metadata}))
        await self._write_status()
        try:
            await self._renew()
        except NotFound:
            await self.client.create(LEASE, lease(self.registration, self._node["metadata"]["uid"], self.clock.now()))
        self._last_contact = self.clock.now()

    async def run(self) -> None:
        """Run until cancelled. Errors of the API are logged and retried."""
        while True:
            await self.clock.sleep(PERIOD)
            try:
                was_silent = self.clock.now() - self._last_contact > _SILENCE
                await self._renew()
                if was_silent or self._has_changed():
                    await self._write_status()
                self._last_contact = self.clock.now()
            except NotFound:
                await self._register_again()
            except (ApiError, ConnectionError, TimeoutError) as error:
                _log.warning("failed to renew the node lease: %s", error)

    async def stop(self) -> None:
        """Mark the Node as stopped, if the API still answers."""
        try:
            await self._patch(stopped(self._known, self.clock.now()))
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.info("failed to mark the node as stopped: %s", error)

    @property
    def _known(self) -> list[Object]:
        found: list[Object] = (self._node.get("status") or {}).get("conditions") or []
        return found

    async def _register_again(self) -> None:
        """Handle a Node or Lease that was deleted."""
        try:
            await self.register()
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.warning("failed to register the node again: %s", error)

    def _has_changed(self) -> bool:
        now = conditions(self.machine, self.capabilities(), self.remaining())
        return now != self._last_conditions or self.clock.monotonic() - self._written_at >= _STATUS_PERIOD

    async def _write_status(self) -> None:
        remaining = self.remaining()
        status = node_status(
            self.machine, self.registration, self.capabilities(), remaining, self._known, self.clock.now()
        )
        await self._patch(status)
        self._last_conditions = conditions(self.machine, self.capabilities(), remaining)
        self._written_at = self.clock.monotonic()

    async def _patch(self, status: Object) -> None:
        body = StrategicPatch({"status": status})
        self._node = await self.client.patch(NODE, self.registration.name, body, subresource="status")

    async def _renew(self) -> None:
        """Raises NotFound also soon after the Node was deleted: the Lease belongs to it and is deleted with it."""
        spec = lease_spec(self.registration, self.clock.now())
        await self.client.patch(LEASE, self.registration.name, MergePatch({"spec": spec}), NODE_LEASES)
