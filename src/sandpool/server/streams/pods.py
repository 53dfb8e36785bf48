"""``exec``, ``attach``, ``portforward`` and ``log`` of pods.

Requests go to the ``PodAccess`` of this process or to the kubelet that runs the pod.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Concatenate, ParamSpec, TypeVar

from sandpool.api.resource import Object, SharedObject
from sandpool.engine.clock import Clock
from sandpool.kube.errors import ApiError, BadRequest, NotFound, ServiceUnavailable
from sandpool.kube.pod_access import PodAccess, PodAccessError, PodAsleep
from sandpool.server.auth.reviews import user_info
from sandpool.server.request.messages import Response, ServerRequest
from sandpool.server.streams.containers import select_container
from sandpool.server.streams.kubelet_proxy import KubeletEndpoint, KubeletProxy, KubeletRequest
from sandpool.server.streams.options import (
    API_NAMES,
    KUBELET_NAMES,
    LOG_PARAMETERS,
    StdStreams,
    StreamQuery,
    command,
    log_query,
)
from sandpool.server.streams.responses import exec_response, port_forward_response, text_response

P = ParamSpec("P")
T = TypeVar("T")


async def _same(pod: SharedObject) -> SharedObject:
    return pod


class PodStreams:
    """Answers the streaming subresources of pods: with ``pod_access`` for pods of this process's node, and through
    ``kubelets`` for those of other nodes.

    ``awake`` returns the pod that takes over from one whose sandbox fell asleep, once it is ready. It raises
    ``ApiError``.
    """

    def __init__(
        self,
        clock: Clock,
        pod_access: PodAccess | None,
        kubelets: KubeletProxy | None,
        awake: Callable[[SharedObject], Awaitable[SharedObject]] = _same,
    ) -> None:
        self.awake = awake
        self.clock = clock
        self.pod_access = pod_access
        self.kubelets = kubelets

    async def answer(self, request: ServerRequest, subresource: str, pod: Object) -> Response:
        query = StreamQuery(request.raw_query or "&".join(f"{name}={value}" for name, value in request.query.items()))
        if pod["spec"].get("nodeName"):
            if self.pod_access is not None and self.pod_access.serves(pod):
                return self._local(self.pod_access, request, subresource, pod, query)
            if self.kubelets is not None and (endpoint := self.kubelets.endpoint(pod)) is not None:
                try:
                    return await _remote(self.kubelets, endpoint, request, subresource, pod, query)
                except ServiceUnavailable as error:
                    raise _not_running(pod, error.message) from error
        raise _not_running(pod, "no node of this server runs it")

    async def node_stats(self, node: Object) -> Response:
        """CPU time and memory of the pods of a node: ``/stats/summary`` of its kubelet."""
        name = node["metadata"]["name"]
        if self.pod_access is not None and (summary := await self.pod_access.stats(name)) is not None:
            return Response(object=summary)
        if self.kubelets is not None and (endpoint := self.kubelets.endpoint({"spec": {"nodeName": name}})) is not None:
            return await self.kubelets.read(endpoint, KubeletRequest(("stats", "summary"), ()))
        raise ServiceUnavailable(f'node "{name}" cannot be reached: it has no kubelet')

    def _local(
        self, pod_access: PodAccess, request: ServerRequest, subresource: str, pod: Object, query: StreamQuery
    ) -> Response:
        headers = request.headers
        if subresource == "portforward":
            user = user_info(request.user)
            return port_forward_response(headers, lambda port: self._reach(pod, pod_access.dial, port, user))
        container = select_container(pod, query.get("container"))
        if subresource == "log":
            return log_response(pod_access, pod, container, query, self.clock)
        streams = StdStreams.read(query, API_NAMES)
        if subresource == "attach":
            attach = pod_access.attach
            return exec_response(headers, streams, lambda client: self._reach(pod, attach, container, client))
        words, execute = command(query), pod_access.execute
        return exec_response(headers, streams, lambda client: self._reach(pod, execute, container, words, client))

    async def _reach(
        self,
        pod: SharedObject,
        access: Callable[Concatenate[SharedObject, P], Awaitable[T]],
        *args: P.args,
        **options: P.kwargs,
    ) -> T:
        """Access a pod. A sandbox may have fallen asleep since the request was accepted: a port-forward lasts for long.
        Then access the next pod."""
        try:
            return await access(pod, *args, **options)
        except PodAccessError as error:
            current = await self._next_pod(pod, error)
        return await access(current, *args, **options)

    async def _next_pod(self, pod: SharedObject, error: PodAccessError) -> SharedObject:
        """Raises ``error`` if the pod could not be accessed for another reason than sleep, and ``PodAccessError``."""
        try:
            current = await self.awake(pod)
        except ApiError as failure:
            if isinstance(error, PodAsleep):
                raise PodAccessError(failure.message) from failure
            raise error from failure
        if current["metadata"]["uid"] == pod["metadata"]["uid"] and not isinstance(error, PodAsleep):
            raise error
        return current


def log_response(
    pod_access: PodAccess, pod: SharedObject, container: str, query: StreamQuery, clock: Clock
) -> Response:
    try:
        return text_response(pod_access.logs(pod, log_query(query, container, clock.now())))
    except PodAccessError as error:
        raise BadRequest(str(error)) from error


async def _remote(
    kubelets: KubeletProxy,
    endpoint: KubeletEndpoint,
    request: ServerRequest,
    subresource: str,
    pod: Object,
    query: StreamQuery,
) -> Response:
    place = (pod["metadata"]["namespace"], pod["metadata"]["name"])
    if subresource == "portforward":
        kubelet_request = KubeletRequest(("portForward", *place), (), request.method, request.headers)
        return await kubelets.upgrade(endpoint, kubelet_request)
    container = select_container(pod, query.get("container"))
    if subresource == "log":
        asked = [(name, value) for name in LOG_PARAMETERS if (value := query.get(name))]
        return await kubelets.read(endpoint, KubeletRequest(("containerLogs", *place, container), asked))
    streams = StdStreams.read(query, API_NAMES)
    passed = [(name, "1") for stream, name in KUBELET_NAMES.items() if getattr(streams, stream)]
    passed += [("tty", "1")] if streams.terminal else []
    passed += [("command", word) for word in command(query)] if subresource == "exec" else []
    kubelet_request = KubeletRequest((subresource, *place, container), passed, request.method, request.headers)
    return await kubelets.upgrade(endpoint, kubelet_request)


def _not_running(pod: Object, why: str) -> ApiError:
    if pod["metadata"].get("deletionTimestamp"):
        return NotFound(f'pod "{pod["metadata"]["name"]}" is being deleted')
    return ServiceUnavailable(f'pod "{pod["metadata"]["name"]}" cannot be reached: {why}')
