"""Routes of the node's own API: the paths under which kube-apiserver looks for a pod at its kubelet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

from sandpool.api.resource import SharedObject
from sandpool.engine.clock import Clock
from sandpool.kube.errors import ApiError, MethodNotAllowed, NotFound
from sandpool.kube.pod_access import PodAccess
from sandpool.node.kubelet.authorization import NodeAuthorizer
from sandpool.server.auth.groups import ANONYMOUS
from sandpool.server.auth.reviews import user_info
from sandpool.server.request.messages import Response, ServerRequest
from sandpool.server.streams.containers import select_container
from sandpool.server.streams.options import KUBELET_NAMES, StdStreams, StreamQuery, command
from sandpool.server.streams.pods import log_response
from sandpool.server.streams.responses import exec_response, port_forward_response

_TEXT: Final = "text/plain; charset=utf-8"
_NO_SUCH_PATH: Final = "404 page not found"

#: Finds a pod of this node, as the API has it.
FindPod = Callable[[str, str], SharedObject | None]


class KubeletHandler:
    """Logs require the verb ``get``. Exec, attach and port-forward require ``create``, even as a GET request, which is
    how a WebSocket starts: permission to read must not include permission to execute."""

    def __init__(self, access: NodeAuthorizer, find: FindPod, pod_access: PodAccess, clock: Clock) -> None:
        self.access = access
        self.find = find
        self.pod_access = pod_access
        self.clock = clock

    async def handle(self, request: ServerRequest) -> Response:
        segments = [unquote(segment) for segment in request.path.split("/")[1:]]
        if segments == ["healthz"]:
            return _text(200, "ok")
        if request.user == ANONYMOUS:  # paths that our HTTP server serves without authentication
            raise NotFound(_NO_SUCH_PATH)
        if segments[0] == "containerLogs":
            return await self._logs(request, segments[1:])
        if segments == ["stats", "summary"]:
            return await self._stats(request)
        await self.access.require(request.user, "create")
        if request.method not in ("GET", "POST"):
            raise MethodNotAllowed(f"{request.method} is not understood here: only GET and POST")
        return self._converse(request, segments)

    async def _logs(self, request: ServerRequest, segments: list[str]) -> Response:
        """Errors are plain text, which kube-apiserver wraps in a Status."""
        try:
            await self.access.require(request.user, "get")
            if request.method != "GET":
                raise MethodNotAllowed(f"{request.method} is not understood here: only GET")
            match segments:
                case [namespace, name, container]:
                    pod = self._pod(namespace, name)
                    return log_response(
                        self.pod_access,
                        pod,
                        select_container(pod, container),
                        StreamQuery(request.raw_query),
                        self.clock,
                    )
            raise NotFound(_NO_SUCH_PATH)
        except ApiError as error:
            return _text(error.code, error.message)

    async def _stats(self, request: ServerRequest) -> Response:
        await self.access.require(request.user, "get")
        summary = await self.pod_access.stats(self.access.node)
        if summary is None:
            raise NotFound(_NO_SUCH_PATH)
        return Response(200, object=summary)

    def _converse(self, request: ServerRequest, segments: list[str]) -> Response:
        pod_access, headers = self.pod_access, request.headers
        match segments:
            case ["portForward", namespace, name]:
                pod, user = self._pod(namespace, name), user_info(request.user)
                return port_forward_response(headers, lambda port: pod_access.dial(pod, port, user))
            case ["exec" | "attach" as what, namespace, name, wanted]:
                pod, query = self._pod(namespace, name), StreamQuery(request.raw_query)
                container = select_container(pod, wanted)
                streams = StdStreams.read(query, KUBELET_NAMES)
                if what == "attach":
                    return exec_response(headers, streams, lambda client: pod_access.attach(pod, container, client))
                words = command(query)
                return exec_response(headers, streams, lambda client: pod_access.execute(pod, container, words, client))
        raise NotFound(_NO_SUCH_PATH)

    def _pod(self, namespace: str, name: str) -> SharedObject:
        pod = self.find(namespace, name)
        if pod is None:
            raise NotFound(f'pod "{name}" does not run on this node')
        return pod


def _text(status: int, words: str) -> Response:
    return Response(status, encoded=words.encode(), content_type=_TEXT)
