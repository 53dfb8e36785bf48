"""Everything one pod holds on the machine: a directory, a host user, its network, its volumes and its containers.

They are prepared before the first container and released after the last. The checkpoint in the pod's directory lets the
next agent find them again.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from sandpool.api.views.times import parse_time
from sandpool.node.pods.checkpoint import PodCheckpoint, Run, read_checkpoint, read_run
from sandpool.node.pods.container_spec import pod_limits
from sandpool.node.pods.containers import VOLUMES, Containers, log_directory
from sandpool.node.pods.context import NodeContext, NoRuntime
from sandpool.node.pods.hostname import LONGEST_NAME, hosts_file, own_name, resolv_conf
from sandpool.node.pods.interfaces import Attachment, NetworkFailure, Owner, VolumeFailure
from sandpool.node.pods.restore import mark_lost, mark_running, reset_init_containers, runs
from sandpool.node.pods.spec import Pod
from sandpool.node.pods.state import ContainerPhase, ContainerState, Moment, PodState
from sandpool.node.runtimes.runtime import Container as Running
from sandpool.node.runtimes.runtime import PodSandbox, Runtime, RuntimeFailure
from sandpool.node.runtimes.simulated import SIMULATED

# Containers that are already running keep their network namespace.
_NOWHERE: Final = Attachment(None)


class NotPrepared(Exception):
    """The pod's volumes or network cannot be made now. ``reason`` is that of the event."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def volume_directory(directory: Path) -> Path:
    """Return the directory of a pod's own volumes."""
    return directory / VOLUMES


class PodResources:
    """Prepares, recovers and releases what one pod holds."""

    def __init__(self, context: NodeContext, pod: Pod) -> None:
        self.context = context
        self.pod = pod
        self.directory = context.options.pod_directory(pod.uid)
        self.checkpoint = read_checkpoint(self.directory)
        self._volume_directory = volume_directory(self.directory)
        self._containers: Containers | None = None

    @property
    def containers(self) -> Containers:
        assert self._containers is not None, "nothing was prepared"
        return self._containers

    def running(self, name: str) -> Running | None:
        """Return a container as its runtime knows it, or None."""
        return None if self._containers is None else self._containers.running.get(name)

    def last_run(self, name: str) -> tuple[Path, int] | None:
        """Return a container's log directory and the number of its current or last run, or None if it never ran."""
        run = read_run(self.directory, name)
        return None if run is None else (log_directory(self.directory, name), run.restarts)

    # -- preparing -------------------------------------------------------------------------------------------------

    async def prepare(self) -> tuple[str, ...]:
        """Make the pod's volumes and network and return its addresses. Raises ``NotPrepared``; the caller may try
        again."""
        runtime = self._runtime()
        if (called := len(own_name(self.pod.object, self.context.options.cluster_domain))) > LONGEST_NAME:
            why = f"setHostnameAsFQDN: the name is too long ({LONGEST_NAME} characters is the max, {called} requested)"
            raise NotPrepared("FailedCreatePodSandBox", f"Failed to create pod sandbox: {why}")
        checkpoint = self._entered(runtime)
        owner = Owner(checkpoint.host_uid, self.context.host_users.group_of(checkpoint.host_uid))
        self._volume_directory.mkdir(mode=0o711, exist_ok=True)
        # Wait for both even if one fails: resources that are still being made cannot be released.
        attached, volumes = await asyncio.gather(
            self.context.network.attach(self.pod.object),
            self.context.volumes.prepare(
                self.pod.object, self._volume_directory, owner, simulated=runtime.name == SIMULATED
            ),
            return_exceptions=True,
        )
        if isinstance(attached, NetworkFailure):
            raise NotPrepared("FailedCreatePodSandBox", f"Failed to create pod sandbox: {attached}") from attached
        if isinstance(attached, BaseException):
            raise attached
        if isinstance(volumes, VolumeFailure):
            raise NotPrepared("FailedMount", str(volumes)) from volumes
        if isinstance(volumes, BaseException):
            raise volumes
        sandbox = self._sandbox(checkpoint, attached)
        try:
            await runtime.open_pod(sandbox)
        except RuntimeFailure as error:
            raise NotPrepared("FailedCreatePodSandBox", f"Failed to create pod sandbox: {error}") from error
        found = Containers(self.context, runtime, sandbox, volumes, attached.addresses)
        if self._containers is not None:
            found.running = self._containers.running  # keep adopted containers
        self._containers = found
        return attached.addresses

    def _runtime(self) -> Runtime:
        name = self.pod.object["spec"].get("runtimeClassName") or ""
        handler = self.context.runtime_handler(name) if name else ""
        try:
            if handler is None:
                raise NoRuntime(f'RuntimeClass "{name}" not found')
            return self.context.runtimes.choose(handler)
        except NoRuntime as error:
            raise NotPrepared("FailedCreatePodSandBox", f"Failed to create pod sandbox: {error}") from error

    def _entered(self, runtime: Runtime) -> PodCheckpoint:
        """Return the pod's checkpoint, written if there is none."""
        if self.checkpoint is None:
            user, key = self.context.host_users.take(), self.pod.key
            self.checkpoint = PodCheckpoint(self.pod.uid, key.namespace, key.name, user, runtime.name)
            self.checkpoint.write(self.directory)
        return self.checkpoint

    def _sandbox(self, checkpoint: PodCheckpoint, attached: Attachment = _NOWHERE) -> PodSandbox:
        settings, network, pod = self.context.options, self.context.network, self.pod.object
        host_text = ""
        with suppress(OSError):
            host_text = settings.resolv_conf.read_text(errors="replace")
        return PodSandbox(
            uid=self.pod.uid,
            directory=self.directory,
            host_uid=checkpoint.host_uid,
            host_gid=self.context.host_users.group_of(checkpoint.host_uid),
            netns=attached.netns,
            hostname=own_name(pod, settings.cluster_domain),
            hosts=hosts_file(pod, attached.addresses, settings.cluster_domain),
            resolv_conf=resolv_conf(pod, network.nameservers, settings.cluster_domain, host_text),
            limits=pod_limits(pod, settings.pids),
            address=next(iter(attached.addresses), ""),
        )

    # -- recovering ------------------------------------------------------------------------------------------------

    async def recover(self, state: PodState, now: Moment) -> PodState:
        """Return the state with the containers that are found on this machine. A container that ended meanwhile is
        marked as running: waiting for its end returns at once."""
        found: set[str] = set()
        runtime = None if self.checkpoint is None else self.context.runtimes.every.get(self.checkpoint.runtime)
        if self.checkpoint is not None and runtime is not None:
            sandbox = self._sandbox(self.checkpoint)
            self._containers = Containers(self.context, runtime, sandbox, _NoVolumes(), ())
            for container in state.pod.every:
                adopted = await self._containers.adopt(container)
                if adopted is None or _is_reported(state[container.name], adopted[1]):
                    continue
                found.add(container.name)
                running, run = adopted
                state = state.with_container(
                    container.name, restarts=run.restarts, image_id=run.image_id, container_id=run.id
                )
                state = mark_running(state, container, parse_time(run.started) or now.time, now)
                state = replace(state, frozen=state.frozen or await running.is_paused())
        for container in state.pod.every:
            if container.name not in found and runs(state.pod, container.name):
                state = mark_lost(state, container, now)
        return state if found else reset_init_containers(state)

    # -- releasing -------------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        await asyncio.gather(*(each.pause() for each in self.containers.running.values() if each.is_running))

    async def resume(self) -> None:
        """Resume all containers. Resuming one that has ended is harmless and saves checking which ones run."""
        await asyncio.gather(*(each.resume() for each in self.containers.running.values()))

    async def release(self, *, volumes: bool) -> None:
        """Release everything but the directory, which holds the logs."""
        for container in [] if self._containers is None else list(self._containers.running.values()):
            await container.delete()
        runtime = None if self.checkpoint is None else self.context.runtimes.every.get(self.checkpoint.runtime)
        if self.checkpoint is not None and runtime is not None:
            await runtime.close_pod(self._sandbox(self.checkpoint))
        await self.context.network.detach(self.pod.uid)
        await self.context.volumes.release(self.pod.uid, self._volume_directory, keep=not volumes)
        if self._containers is not None:
            self._containers.running.clear()

    async def discard(self) -> None:
        """Remove the directory and return the host user."""
        await self.context.volumes.release(self.pod.uid, self._volume_directory)
        await asyncio.to_thread(shutil.rmtree, self.directory, ignore_errors=True)
        if self.checkpoint is not None:
            self.context.host_users.give_back(self.checkpoint.host_uid)


def _is_reported(known: ContainerState, run: Run) -> bool:
    """Whether the API already shows how that run ended."""
    return (
        known.phase is ContainerPhase.ENDED
        and known.termination is not None
        and known.termination.container_id == run.id
    )


class _NoVolumes:
    """Volumes of an adopted pod until they are prepared again. No container starts before that."""

    def mounts(self, container: object, env: object) -> tuple[()]:
        return ()
