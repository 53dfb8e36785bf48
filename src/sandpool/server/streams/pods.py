"""``exec``, ``attach``, ``portforward`` and ``log`` of pods: what is asked for, and who is to answer.

Nothing of this is stored; the pod is looked up, and the way in is the ``PodAccess``'s or that of the kubelet which runs
the pod. Without either the answer says so.
"""

from __future__ import annotations

from sandpool.api.resource import Object
from sandpool.engine.clock import Clock
from sandpool.kube.errors import ApiError, BadRequest, NotFound, ServiceUnavailable
from sandpool.kube.pod_access import PodAccess, PodAccessError
from sandpool.server.exchange import Response, ServerRequest
from sandpool.server.streams.containers import chosen_container
from sandpool.server.streams.conversations import with_command, with_ports, with_text
from sandpool.server.streams.kubelets import Endpoint, Kubelets, Question
from sandpool.server.streams.query import (
    API_NAMES,
    KUBELET_NAMES,
    LOG_PARAMETERS,
    Query,
    Streams,
    command,
    log_query,
)


class PodStreams:
    def __init__(self, clock: Clock, door: PodAccess | None, kubelets: Kubelets | None) -> None:
        self.clock = clock
        self.door = door
        self.kubelets = kubelets

    async def answer(self, request: ServerRequest, subresource: str, pod: Object) -> Response:
        query = Query(request.raw_query or "&".join(f"{name}={value}" for name, value in request.query.items()))
        if pod["spec"].get("nodeName"):
            if self.door is not None and self.door.leads_to(pod):
                return self._here(self.door, request, subresource, pod, query)
            if self.kubelets is not None and (endpoint := self.kubelets.endpoint(pod)) is not None:
                try:
                    return await _there(self.kubelets, endpoint, request, subresource, pod, query)
                except ServiceUnavailable as error:
                    raise _not_running(pod, error.message) from error
        raise _not_running(pod, "no node of this server runs it")

    def _here(self, door: PodAccess, request: ServerRequest, subresource: str, pod: Object, query: Query) -> Response:
        headers = request.headers
        if subresource == "portforward":
            return with_ports(headers, lambda port: door.dial(pod, port))
        container = chosen_container(pod, query.get("container"))
        if subresource == "log":
            return log_of(door, pod, container, query, self.clock)
        streams = Streams.read(query, API_NAMES)
        if subresource == "attach":
            return with_command(headers, streams, lambda client: door.attach(pod, container, client))
        words = command(query)
        return with_command(headers, streams, lambda client: door.execute(pod, container, words, client))


def log_of(door: PodAccess, pod: Object, container: str, query: Query, clock: Clock) -> Response:
    try:
        return with_text(door.logs(pod, log_query(query, container, clock.now())))
    except PodAccessError as error:
        raise BadRequest(str(error)) from error


async def _there(
    kubelets: Kubelets, endpoint: Endpoint, request: ServerRequest, subresource: str, pod: Object, query: Query
) -> Response:
    place = (pod["metadata"]["namespace"], pod["metadata"]["name"])
    if subresource == "portforward":
        question = Question(("portForward", *place), (), request.method, request.headers)
        return await kubelets.converse(endpoint, question)
    container = chosen_container(pod, query.get("container"))
    if subresource == "log":
        asked = [(name, value) for name in LOG_PARAMETERS if (value := query.get(name))]
        return await kubelets.read(endpoint, Question(("containerLogs", *place, container), asked))
    streams = Streams.read(query, API_NAMES)
    passed = [(name, "1") for stream, name in KUBELET_NAMES.items() if getattr(streams, stream)]
    passed += [("tty", "1")] if streams.terminal else []
    passed += [("command", word) for word in command(query)] if subresource == "exec" else []
    question = Question((subresource, *place, container), passed, request.method, request.headers)
    return await kubelets.converse(endpoint, question)


def _not_running(pod: Object, why: str) -> ApiError:
    if pod["metadata"].get("deletionTimestamp"):
        return NotFound(f'pod "{pod["metadata"]["name"]}" is being deleted')
    return ServiceUnavailable(f'pod "{pod["metadata"]["name"]}" cannot be reached: {why}')
