"""The entrance of the Python client, for asyncio."""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from sandpool.api.kinds import SANDBOX_CLAIM
from sandpool.api.labels import IDLE_FREEZE_AFTER, IDLE_SUSPEND_AFTER
from sandpool.api.resource import SharedObject
from sandpool.kube.errors import ApiError, Conflict, NotFound
from sandpool.sdk.claim_watch import ClaimWatch
from sandpool.sdk.errors import PoolExhausted, Refused, SandboxLost, service_errors
from sandpool.sdk.lease import KEPT, Leases, is_kept
from sandpool.sdk.sandbox import AsyncSandbox, Use
from sandpool.service.claims import READY_TIMEOUT, Claim, Claims, random_name
from sandpool.service.errors import ClaimGone, NameTaken, NotReadyInTime
from sandpool.service.service import Service

if TYPE_CHECKING:
    from sandpool.home.discovery import Home
    from sandpool.sdk.pool import AsyncPool, AsyncTemplate
    from sandpool.sdk.task_map import Progress

#: The pool of sandboxes if none is named: that of ``sandpool run``.
DEFAULT_POOL: Final = "python"
#: Whether claims may set variables, and also replace those of the template.
EnvPolicy = Literal["Allowed", "Overrides", "Disallowed"]
#: Seconds that claims of a program outlive it.
LEASE: Final = 60.0
#: On claims: the client that holds it, and the hash of the key that it was made with.
CLIENT_LABEL: Final = "sandpool.dev/client"
KEY_LABEL: Final = "sandpool.dev/key"
#: Labels of this domain select claims of a program, a key of E2B or a command.
LABEL_DOMAIN: Final = "sandpool.dev"
_DOMAIN: Final = re.compile(rf"(?:^|\.){re.escape(LABEL_DOMAIN)}/")
_CREATE_ATTEMPTS: Final = 3
_OTHER_REQUEST: Final = "Use another key or name, or the same arguments."


class AsyncClient:
    """Claims sandboxes of one namespace. Close it, or use it as a context manager: that releases its sandboxes.

    Without arguments it talks to the API that the command line talks to: ``KUBECONFIG``, the local home, or the service
    account of a pod. ``lease`` is the time in seconds after which the sandboxes of a dead program are released.
    ``router`` is the address of the router, and ``router_token`` a token for it, with which ``AsyncSandbox.url`` signs
    URLs; the client knows those of the local home. ``program`` is what the audit log of the API shows, as in
    ``sandpool-mcp``."""

    def __init__(
        self,
        *,
        kubeconfig: str | os.PathLike[str] | None = None,
        context: str | None = None,
        namespace: str | None = None,
        lease: float = LEASE,
        router: str | None = None,
        router_token: str | None = None,
        service: Service | None = None,
        program: str | None = None,
    ) -> None:
        self._home: Home | None = None
        if service is None:
            from sandpool.home.connection import resolve

            with service_errors():
                target = resolve(None if kubeconfig is None else Path(kubeconfig), context)
                connection = target.connection()
            self._home = target.home
            service = Service.connect(connection if program is None else connection.of_program(program), namespace)
        self._router = (router, router_token)
        self.service = service
        self.id = random_name("client")
        self.leases = Leases(service.client, service.namespace, lease, self.id)
        self._held: set[AsyncSandbox] = set()
        self._finishing: set[asyncio.Future[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def sandbox(
        self,
        pool: str = DEFAULT_POOL,
        *,
        name: str | None = None,
        key: str | None = None,
        keep: bool = False,
        env: Mapping[str, str] | None = None,
        freeze_after: float | str | None = None,
        suspend_after: float | str | None = None,
        labels: Mapping[str, str] | None = None,
        pod_labels: Mapping[str, str] | None = None,
        pod_annotations: Mapping[str, str] | None = None,
        timeout: float = READY_TIMEOUT,
    ) -> SandboxRequest:
        """Claim a sandbox: ``async with client.sandbox() as sb`` or ``sb = await client.sandbox()``.

        At the end of the block it is released; with ``keep`` it stays, without a lease, until it is released by name.
        Calls with the same ``key`` get the same sandbox of the pool, also after a lost answer and from another program.
        It is released when the last of them ends; one that any of them keeps stays. Raises ``NameTaken`` if it was made
        with another pool, ``env``, metadata or times of sleep. ``env`` are variables of all that runs in the sandbox,
        if its template allows them; with late binding the sandbox is warm all the same. On the local home, a sandbox
        that was not used for the time ``freeze_after`` is frozen, and after ``suspend_after`` suspended, until it is
        used again: seconds, a duration such as "5m", or "never". The template must not set the same one differently.
        ``labels`` are those of the claim, ``pod_labels`` and ``pod_annotations`` are for its pod, also a warm one;
        labels of pods are limited to the domains that the operator allows. Raises ``PoolExhausted`` if no sandbox is
        ready within ``timeout`` seconds."""
        if own := [label for label in labels or () if _DOMAIN.search(label)]:
            raise Refused(f"labels of the domain {LABEL_DOMAIN} are not for users: {', '.join(own)}")
        sleep = {IDLE_FREEZE_AFTER: _sleep_time(freeze_after), IDLE_SUSPEND_AFTER: _sleep_time(suspend_after)}
        times = {annotation: time for annotation, time in sleep.items() if time is not None}
        annotations = {**(pod_annotations or {}), **times}
        return SandboxRequest(self, pool, name, key, keep, timeout, env, labels, pod_labels, annotations)

    async def map(
        self,
        task: str | Callable[[Any], Any],
        inputs: Iterable[Any],
        *,
        pool: str = DEFAULT_POOL,
        parallelism: int = 100,
        sessions: bool = False,
        fresh: bool = False,
        retries: int = 2,
        timeout: float | None = None,
        progress: Progress | bool = False,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """Run a task for every input, in up to ``parallelism`` sandboxes at once. Returns the results in order.

        ``task`` is a function whose source can be read and that needs nothing outside of itself, or code that uses the
        variable ``input`` and ends with an expression. Inputs and results are passed as JSON: nothing that a sandbox
        sends is ever executed here. Each task runs in a Python process of its own, with ``sessions`` in one that later
        tasks of the sandbox share, with ``fresh`` in a sandbox of its own. A task that failed because its sandbox or
        the service did is run again up to ``retries`` times. The first ``TaskError`` ends the map, unless
        ``return_exceptions`` puts errors in the place of results."""
        from sandpool.sdk.task_map import TaskMap, source_of

        work = TaskMap(self, source_of(task), pool, sessions, fresh, retries, timeout, return_exceptions)
        return await work.run(list(inputs), parallelism, progress)

    async def template(
        self,
        name: str,
        *,
        image: str | None = None,
        command: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cpu: str | None = None,
        memory: str | None = None,
        disk: str | None = None,
        port: int | None = None,
        runtime: str | None = None,
        freeze: bool = False,
        freeze_after: float | str | None = None,
        suspend_after: float | str | None = None,
        late_binding: bool = False,
        env_policy: EnvPolicy | None = None,
    ) -> AsyncTemplate:
        """Create a template of an image, or find the one of this name if no image is given.

        ``command`` replaces that of the image; ``cpu``, ``memory`` and ``disk`` are limits, such as "2" and "1Gi"; a
        sandbox is ready when its ``port`` accepts connections; ``freeze`` stops sandboxes until they are claimed;
        ``freeze_after`` and ``suspend_after`` are those of ``sandbox``, for all sandboxes of the template.
        ``late_binding`` lets claims set variables and gets them warm sandboxes; ``env_policy`` says whether claims may
        set variables, and with "Overrides" those of the template too. A template of this name that is the same is used
        as it is. Raises ``NameTaken`` if it is different."""
        from sandpool.sdk.pool import ensure_template
        from sandpool.service.templates import NewTemplate

        new = None
        if image is not None:
            new = NewTemplate(
                image=image,
                command=command,
                env=env,
                cpu=cpu,
                memory=memory,
                disk=disk,
                port=port,
                runtime=runtime,
                freeze=freeze,
                freeze_after=_sleep_time(freeze_after),
                suspend_after=_sleep_time(suspend_after),
                late_binding=late_binding,
                env_policy=env_policy,
            )
        return await ensure_template(self, name, new)

    async def pool(self, name: str, *, template: str | None = None, size: int | None = None) -> AsyncPool:
        """Create a pool of ``size`` warm sandboxes of a template, or find the one of this name.

        A pool of this name gets that size, if one is given. Raises ``NameTaken`` if it has another template."""
        from sandpool.sdk.pool import ensure_pool

        return await ensure_pool(self, name, template, size)

    async def connect(self, name: str) -> AsyncSandbox:
        """Use the sandbox of an existing claim. It is not released with this client."""
        with service_errors():
            claim = await self._claims.wait_ready(name)
            return AsyncSandbox(self, claim, await self.service.sandboxes.get(claim.sandbox))

    async def release(self, sandbox: AsyncSandbox) -> None:
        """Give up a sandbox: delete its claim, and with it the sandbox, unless others use it too."""
        claim = sandbox._claim
        if sandbox in self._held:
            self._held.discard(sandbox)
            self.leases.drop(claim.name, claim.uid)
        with service_errors():
            await self._give_up(claim, sandbox._use)

    async def _give_up(self, claim: Claim, use: Use) -> None:
        if use is Use.SHARED:
            with suppress(NotFound, Conflict):  # it is gone, or another claim has its name
                await self.leases.leave(claim.name, claim.uid)
        elif use is Use.OWN:
            await self.service.claims.delete(claim)

    async def finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work that gives something back to its end, even if the caller is cancelled meanwhile: that is told when
        the work is done. Cancelled again, the caller leaves it to ``close``."""
        task = asyncio.ensure_future(work)
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait((task,))
            raise

    def sign_url(self, sandbox: str, port: int, seconds: float) -> str:
        """A URL of a port of a sandbox, by the name of the sandbox; see ``AsyncSandbox.url``."""
        from sandpool.router.signed_urls import UrlGrant
        from sandpool.sdk.router_access import RouterAccess

        with service_errors():
            access = RouterAccess.find(*self._router, self._home)
        until = math.ceil(self.leases.now().timestamp() + seconds)
        return access.sign(UrlGrant(self.service.namespace, sandbox, port, until))

    async def close(self) -> None:
        """Release the sandboxes that are held, and close all connections."""
        await asyncio.gather(
            *(sandbox.release() for sandbox in list(self._held)), *self._finishing, return_exceptions=True
        )
        await self.leases.close()
        await self._watch.close()
        await self.service.close()

    @cached_property
    def _watch(self) -> ClaimWatch:
        return ClaimWatch(self.service.client, self.service.namespace, f"{CLIENT_LABEL}={self.id}")

    @cached_property
    def _claims(self) -> Claims:
        return Claims(self.service.client, self.service.namespace)

    @cached_property
    def _own_claims(self) -> Claims:
        return Claims(self.service.client, self.service.namespace, self._watch.events)

    async def _acquire(self, request: SandboxRequest) -> AsyncSandbox:
        hashed = "" if request.key is None else sha256(request.key.encode()).hexdigest()[:16]
        name = request.name or (f"{request.pool[:40]}-{hashed}" if hashed else random_name(request.pool))
        try:
            with service_errors():
                claim, use = await self._claim(name, hashed, request)
                try:
                    sandbox = await self.service.sandboxes.get(claim.sandbox)
                except BaseException:
                    await self.finish(self._undo(request, use, claim.object))
                    raise
        except NotReadyInTime as error:
            raise PoolExhausted(error.message, error.advice) from error
        except ClaimGone as error:
            raise SandboxLost(error.message, "Deleted", "Claim another one.") from error
        made = AsyncSandbox(self, claim, sandbox, Use.OWN if request.keep else use)
        if not request.keep and use is not Use.BORROWED:
            self._held.add(made)
        return made

    async def _claim(self, name: str, key: str, request: SandboxRequest) -> tuple[Claim, Use]:
        """Create the claim, or find it: after a lost answer, its name tells whether the first attempt made it. Its
        lease is renewed from its creation on, because the wait for a sandbox may be longer than a lease."""
        use = Use.SHARED if key and not request.keep else Use.OWN
        labels = {**request.labels, CLIENT_LABEL: self.id, **({KEY_LABEL: key} if key else {})}
        marks = ({KEPT: "true"} if request.keep else self.leases.marks()) if key else None
        for attempt in range(1, _CREATE_ATTEMPTS + 1):
            try:
                claim = await self._own_claims.create(
                    request.pool,
                    name=name,
                    own_labels=labels,
                    own_annotations=marks,
                    shutdown_time=None if request.keep else self.leases.end(),
                    env=request.env,
                    pod_labels=request.pod_labels,
                    pod_annotations=request.pod_annotations,
                    timeout=request.timeout,
                    created=None if request.keep else partial(self._begin_lease, use),
                    undo=partial(self._undo, request, use),
                )
                return claim, use
            except NameTaken as taken:
                found = await self._find(taken, name, key, request)
                if found is not None:
                    return found
            except OSError:
                if attempt == _CREATE_ATTEMPTS:
                    raise
        raise ClaimGone(f'claim "{name}" was deleted while it was looked for')

    async def _find(self, taken: NameTaken, name: str, key: str, request: SandboxRequest) -> tuple[Claim, Use] | None:
        """Use the claim that has the name, if it is of this client or of the same key. None if it is gone."""
        try:
            found = await self.service.client.get(SANDBOX_CLAIM, name, self.service.namespace)
            owner: dict[str, Any] = found["metadata"].get("labels") or {}
            if owner.get(CLIENT_LABEL) != self.id and not (key and owner.get(KEY_LABEL) == key):
                raise taken
            request.check(found)
            if request.keep:
                use = Use.OWN if owner.get(CLIENT_LABEL) == self.id else Use.BORROWED
                found = found if is_kept(found) else await self.leases.keep(found)
            elif is_kept(found):
                use = Use.BORROWED
            else:
                use = Use.SHARED if key else Use.OWN
                found = await self.leases.join(found, bool(key))
        except (NotFound, Conflict):
            return None
        try:
            if "deletionTimestamp" in found["metadata"]:
                raise ClaimGone(f'claim "{name}" is being deleted')
            return await self._claims.wait_ready(name, request.timeout), use
        except BaseException:
            await self.finish(self._undo(request, use, found))
            raise

    async def _begin_lease(self, use: Use, created: SharedObject) -> None:
        """Hold the lease of a claim that the server has just created."""
        is_wrong = self.leases.learn(created)
        self.leases.hold(created["metadata"]["name"], created["metadata"]["uid"], use is Use.SHARED)
        if is_wrong:
            await self.leases.renew()

    async def _undo(self, request: SandboxRequest, use: Use, created: SharedObject) -> None:
        """Give up a claim that the program never got. If that fails, it ends with its lease."""
        claim = Claim.from_object(created)
        if use is not Use.BORROWED and not request.keep:
            self.leases.drop(claim.name, claim.uid)
        with suppress(ApiError, OSError):
            await self._give_up(claim, use)


class SandboxRequest:
    """A sandbox that is about to be claimed: wait for it with ``await`` or ``async with``."""

    def __init__(
        self,
        client: AsyncClient,
        pool: str,
        name: str | None,
        key: str | None,
        keep: bool,
        timeout: float,
        env: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        pod_labels: Mapping[str, str] | None = None,
        pod_annotations: Mapping[str, str] | None = None,
    ) -> None:
        self.client = client
        self.pool = pool
        self.name = name
        self.key = key
        self.keep = keep
        self.timeout = timeout
        self.env = env
        self.labels = labels or {}
        self.pod_labels = pod_labels
        self.pod_annotations = pod_annotations
        self._sandbox: AsyncSandbox | None = None

    def check(self, found: SharedObject) -> None:
        """Raise ``NameTaken`` if a claim was made for another request than this one."""
        name, spec = found["metadata"]["name"], found["spec"]
        pool = (spec.get("warmPoolRef") or {}).get("name")
        if pool != self.pool:
            raise NameTaken(f'claim "{name}" exists with the pool "{pool}"', _OTHER_REQUEST)
        env = {each["name"]: each.get("value", "") for each in spec.get("env") or ()}
        for_pod = spec.get("additionalPodMetadata") or {}
        labels = {key: value for key, value in (found["metadata"].get("labels") or {}).items() if key in self.labels}
        other = (
            _different(env, self.env or {})
            or _different(labels, self.labels)
            or _different(for_pod.get("labels") or {}, self.pod_labels or {})
            or _different(for_pod.get("annotations") or {}, self.pod_annotations or {})
        )
        if other:
            raise NameTaken(f'claim "{name}" exists with other values of {", ".join(other)}', _OTHER_REQUEST)

    def __await__(self) -> Generator[Any, None, AsyncSandbox]:
        return self.client._acquire(self).__await__()

    async def __aenter__(self) -> AsyncSandbox:
        self._sandbox = await self
        return self._sandbox

    async def __aexit__(self, *_: object) -> None:
        if self._sandbox is not None:
            await (self._sandbox.detach() if self.keep else self._sandbox.release())


def _different(present: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """The names whose values differ. The values may be secret."""
    return sorted(name for name in present.keys() | wanted.keys() if present.get(name) != wanted.get(name))


def _sleep_time(time: float | str | None) -> str | None:
    if time is None:
        return None
    from sandpool.api.sleep import sleep_time

    try:
        return sleep_time(time)
    except ValueError as error:
        raise Refused(str(error)) from None
