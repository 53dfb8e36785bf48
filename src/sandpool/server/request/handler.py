"""Handles one request: authorizes it, finds the resource and calls the verb.

The handler is independent of HTTP connections: the HTTP server and the in-process transport both pass a
``ServerRequest``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

import orjson

from sandpool.api.causes import Cause
from sandpool.api.kinds import NODE, POD
from sandpool.api.resource import Key, Object, ResourceType, shared_key
from sandpool.api.schema.core import definition
from sandpool.kube.errors import BadRequest, Conflict, Forbidden, MethodNotAllowed, NotFound, TooLarge
from sandpool.kube.transport import APPLY_PATCH
from sandpool.server.apply import manager_from_user_agent, validate_manager
from sandpool.server.builtin import STREAMED_SUBRESOURCES
from sandpool.server.kinds.strategies import KindStrategy
from sandpool.server.registry import read
from sandpool.server.registry.context import Outcome, RegistryContext
from sandpool.server.registry.create import create
from sandpool.server.registry.delete import delete, delete_collection
from sandpool.server.registry.offload import OffloadedContext, OffloadWorker, Overtaken
from sandpool.server.registry.patch import check_media_type, patch, patcher
from sandpool.server.registry.scale import read_scale, update_scale
from sandpool.server.registry.update import MODIFIED, update
from sandpool.server.registry.watch import watch
from sandpool.server.request import body as bodies
from sandpool.server.request.body import Body
from sandpool.server.request.messages import Response, ServerRequest, User
from sandpool.server.request.nonresource import NO_SUCH_RESOURCE, NonResourceHandler, no_such_resource
from sandpool.server.request.options import (
    WriteOptions,
    delete_options,
    list_options,
    refused,
    watch_options,
    write_options,
)
from sandpool.server.request.request_info import RequestInfo, parse
from sandpool.server.request.subresources import Call, Subresources
from sandpool.server.request.views import View, warning
from sandpool.server.request.yaml_worker import LARGE, YamlWorker
from sandpool.server.resources import Resource, ResourceTable

#: Requests with larger bodies, writes to larger objects and lists of more objects run in a thread.
LARGE_BODY: Final = 8 * 1024
LARGE_OBJECT: Final = 32 * 1024
LARGE_LIST: Final = 250
# Attempts to change a large object that others change, too; kube-apiserver makes five.
_ATTEMPTS: Final = 5
_MOST_OPTIONS: Final = 256
_NOT_ALLOWED = "the server does not allow this method on the requested resource"


_SCALE = Resource(
    ResourceType("autoscaling", "v1", "Scale", "scales"),
    partial(definition, "io.k8s.api.autoscaling.v1.Scale"),
    KindStrategy(),
)


class Authorizer(Protocol):
    def require(self, user: User, info: RequestInfo) -> None:
        """Raise Forbidden unless the user may do this."""
        ...


class Admission(Protocol):
    def guard(self, user: User, resource: Resource) -> Callable[[Object, Object | None], None] | None:
        """Return a check that refuses objects which this user may not store; None if there is nothing to check."""
        ...


# Serves the streaming subresources of pods: exec, attach, portforward, log.
Streams = Callable[[ServerRequest, str, Object], Awaitable[Response]]

# Resumes the sandbox of a pod if it sleeps.
WakePod = Callable[[Key], Awaitable[None]]


async def _sleeps_never(key: Key) -> None:
    pass


# The subresources through which clients use a pod.
ACCESS_SUBRESOURCES: Final = frozenset(("exec", "attach", "portforward"))
# Commands of kubectl, as its header names them, that use the pod which they read first, and the subresource they use.
_ACCESS_COMMANDS: Final = {
    "kubectl exec": "exec",
    "kubectl cp": "exec",
    "kubectl attach": "attach",
    "kubectl port-forward": "portforward",
}

# A verb that writes, for the context it runs in. The function adapts its options to that context.
Verb = Callable[
    [RegistryContext, Callable[[WriteOptions], WriteOptions]],
    Coroutine[Any, Any, Outcome],
]

# Serves a review: a question asked by creating an object that is never stored.
Review = Callable[[User, Resource, str, Any], Object]


class Handler:
    def __init__(
        self,
        context: RegistryContext,
        resources: ResourceTable,
        documents: NonResourceHandler,
        authorizer: Authorizer,
        admission: Admission,
        subresources: Subresources,
        review: Review,
        streams: Streams,
        wake_pod: WakePod = _sleeps_never,
    ) -> None:
        self._context = context
        self._resources = resources
        self._documents = documents
        self._authorizer = authorizer
        self._admission = admission
        self._subresources = subresources
        self._review = review
        self._streams = streams
        self._wake_pod = wake_pod
        self._yaml_worker = YamlWorker()
        self._offload = OffloadWorker()
        self._plain_views: dict[Resource, View] = {}  # as of that generation of the resources
        self._plain_views_of = -1
        self._known_options: dict[tuple[object, ...], WriteOptions] = {}

    def close(self) -> None:
        """End the thread for large requests when its current work is done."""
        self._offload.close()

    async def handle(self, request: ServerRequest) -> Response:
        info = request.info or parse(request.method, request.path, request.query)
        self._authorizer.require(request.user, info)
        if not info.is_resource:
            return self._documents.answer(request)
        resource = self._resources.get(info.group, info.version, info.resource)
        if resource is None:
            raise no_such_resource(info.group, info.version)
        if info.namespace and not resource.type.namespaced and info.resource != "namespaces":
            raise NotFound(NO_SUCH_RESOURCE)
        try:
            response = await self._serve(request, info, resource)
        except (RecursionError, orjson.JSONEncodeError):
            # The store accepts only objects that were walked and encoded, so there is nothing to undo.
            raise BadRequest("the object is nested too deeply") from None
        except (Conflict, NotFound):
            # Writes are checked against the newest accepted state. A refused client will read that state and retry.
            if info.name and info.verb != "get":
                namespace = info.namespace if resource.type.namespaced else ""
                await self._context.settle(resource, Key(namespace, info.name))
            raise
        if resource.deprecation_warning:
            response.headers.append(warning(resource.deprecation_warning))
        return response

    async def _serve(self, request: ServerRequest, info: RequestInfo, resource: Resource) -> Response:
        if info.subresource:
            return await self._serve_subresource(request, info, resource)
        if info.verb not in resource.type.verbs:
            raise MethodNotAllowed(_NOT_ALLOWED)
        view = self._view(request, resource, info.verb)
        match info.verb:
            case "get":
                if "kubectl-command" in request.headers and self._precedes_access(request, info, resource):
                    await self._wake_pod(self._key(info, resource))
                return view.stored(read.get(self._context, resource, *self._key(info, resource)))
            case "list":
                return await self._list(request, self._scope(info, resource), resource, view)
            case "watch":
                watching = watch_options(request.query)
                stream = watch(self._context, resource, self._scope(info, resource), watching, view.rendering())
                return Response(stream=stream)
            case "create":
                return await self._create(request, info, resource, view)
            case "update" | "patch":
                return view.outcome(*await self._write(request, info, resource, ""))
            case "delete":
                return view.outcome(
                    await delete(self._context, resource, *self._key(info, resource), self._delete_options(request))
                )
            case "deletecollection":
                page = await delete_collection(
                    self._context,
                    resource,
                    self._scope(info, resource),
                    list_options(request.query),
                    self._delete_options(request),
                )
                return await self._render(request, view, lambda: page, len(page.entries))
        raise MethodNotAllowed(_NOT_ALLOWED)

    def _view(self, request: ServerRequest, resource: Resource, verb: str) -> View:
        """The form of the response, which is the same for all who do not ask for one."""
        if "accept" in request.headers or "includeObject" in request.query or verb == "watch":
            return View(self._context, resource, request.headers, request.query, stream=verb == "watch")
        if self._plain_views_of != self._resources.generation:
            self._plain_views_of = self._resources.generation
            self._plain_views = {}
        view = self._plain_views.get(resource)
        if view is None:
            view = self._plain_views[resource] = View(self._context, resource, {}, {})
        return view

    async def _list(self, request: ServerRequest, scope: str | None, resource: Resource, view: View) -> Response:
        options = list_options(request.query)
        count = self._context.store.count(resource.storage, scope)
        large = request.offloadable and count > LARGE_LIST
        listing = read.listing(self._context, resource, scope, options, later=large)
        return await self._render(request, view, listing, count)

    async def _render(
        self, request: ServerRequest, view: View, listing: Callable[[], read.Page], count: int
    ) -> Response:
        """Select and convert the objects of a list, those of a large one in the thread."""

        def render() -> Response:
            response = view.page(listing())
            if response.parts is None:
                response.encode()
            return response

        if request.offloadable and count > LARGE_LIST:
            return await self._offload.call(request.user.name, render)
        return view.page(listing())

    async def _create(self, request: ServerRequest, info: RequestInfo, resource: Resource, view: View) -> Response:
        if info.name or (resource.type.namespaced and not info.namespace):
            raise MethodNotAllowed(_NOT_ALLOWED)
        body = Body(request.object) if request.object is not None else await self._body(request, resource)
        if "list" not in resource.type.verbs:
            review = self._review(request.user, resource, info.namespace, body.value)
            return Response(201, object=review)
        namespace = info.namespace if resource.type.namespaced else ""
        options = self._write_options(request, resource, "CreateOptions")
        if not self._is_large(request):
            outcome = await create(self._context, resource, namespace, body.value, options, duplicates=body.duplicates)
            return view.outcome(outcome, 201)
        outcome = await self._offloaded(
            request,
            resource,
            lambda context, guarded: create(
                context, resource, namespace, body.value, guarded(options), duplicates=body.duplicates
            ),
        )
        return view.outcome(outcome, 201)

    def _is_large(self, request: ServerRequest, resource: Resource | None = None, key: Key | None = None) -> bool:
        """Whether a write belongs into the thread, by the size of its body or of the object it changes."""
        if not request.offloadable:
            return False
        if len(request.body) > LARGE_BODY:
            return True
        entry = self._context.store.head(resource.storage, key) if resource is not None and key is not None else None
        return entry is not None and len(entry.encoded) > LARGE_OBJECT

    async def _offloaded(self, request: ServerRequest, resource: Resource, verb: Verb) -> Outcome:
        """Perform a large write in the thread. It starts over if the object changes meanwhile."""
        self._context.store.resource_store(resource.storage)  # the thread must not be the first to need it
        context = OffloadedContext(self._context, asyncio.get_running_loop())
        for _ in range(_ATTEMPTS):
            try:
                return await self._offload.run(request.user.name, verb(context, partial(_guarded_on_loop, context)))
            except Overtaken:
                continue
        raise Conflict(MODIFIED)

    async def _write(
        self, request: ServerRequest, info: RequestInfo, resource: Resource, subresource: str
    ) -> tuple[Outcome, int]:
        """Serve a PUT or PATCH of an object or its status."""
        key = self._key(info, resource)
        if info.verb == "update":
            body = await self._body(request, resource)
            options = self._write_options(request, resource, "UpdateOptions")
            if resource.strategy.allow_create_on_update:
                options = self._with_create_refusal(request, info, options)
            asked: dict[str, Any] = {"subresource": subresource, "duplicates": body.duplicates}
            if not self._is_large(request, resource, key):
                outcome = await update(self._context, resource, *key, body.value, options, **asked)
            else:
                outcome = await self._offloaded(
                    request,
                    resource,
                    lambda context, guarded: update(context, resource, *key, body.value, guarded(options), **asked),
                )
            return outcome, 201 if outcome.created else 200
        media_type = bodies.media_type(request.headers.get("content-type", ""))
        check_media_type(resource, media_type)
        options = self._write_options(request, resource, "PatchOptions", applying=media_type == APPLY_PATCH)
        if media_type == APPLY_PATCH:
            options = self._with_create_refusal(request, info, options)
        if request.with_metadata:
            options = replace(options, with_metadata=True)
        body = Body(request.object) if request.object is not None else await self._patch_body(request, media_type)
        asked = {"subresource": subresource, "duplicates": body.duplicates}
        if not self._is_large(request, resource, key):
            outcome = await patch(self._context, resource, *key, media_type, body.value, options, **asked)
        else:
            outcome = await self._offloaded(
                request,
                resource,
                lambda context, guarded: patch(
                    context, resource, *key, media_type, body.value, guarded(options), **asked
                ),
            )
        return outcome, 201 if outcome.created else 200

    def _with_create_refusal(self, request: ServerRequest, info: RequestInfo, options: WriteOptions) -> WriteOptions:
        """Authorize the creation of an object that the write may not find. Permission to change an object does not
        extend to it."""
        refusal = request.create_refusal
        if refusal is None:
            try:
                self._authorizer.require(request.user, replace(info, verb="create"))
            except Forbidden as error:
                refusal = error
        return options if refusal is None else replace(options, create_refusal=refusal)

    async def _serve_subresource(self, request: ServerRequest, info: RequestInfo, resource: Resource) -> Response:
        if info.subresource == "proxy" and info.verb == "get" and resource.type.group_resource == NODE.plural:
            node = read.get(self._context, resource, *self._key(info, resource)).decode()
            return await self._streams(request, "/".join(("proxy", *info.rest)), node)
        if info.subresource not in resource.type.subresources:
            raise NotFound(NO_SUCH_RESOURCE)
        view = self._view(request, resource, info.verb)
        key = self._key(info, resource)
        if info.subresource == "status":
            if info.verb == "get":
                return view.stored(read.get(self._context, resource, *key))
            if info.verb in ("update", "patch"):
                return view.outcome(*await self._write(request, info, resource, "status"))
            raise MethodNotAllowed(_NOT_ALLOWED)
        if info.subresource == "scale":
            return await self._serve_scale(request, info, resource)
        if info.subresource in STREAMED_SUBRESOURCES and info.verb in ("get", "create"):
            if info.subresource in ACCESS_SUBRESOURCES:
                await self._wake_pod(key)
            return await self._streams(request, info.subresource, read.get(self._context, resource, *key).decode())
        action = self._subresources.find(resource, info.subresource, info.verb)
        if action is None:
            raise MethodNotAllowed(_NOT_ALLOWED)
        options = self._write_options(request, resource, "CreateOptions")
        body = await self._body(request, resource)
        return await action(Call(resource, *key, body.value, options))

    async def _serve_scale(self, request: ServerRequest, info: RequestInfo, resource: Resource) -> Response:
        key = self._key(info, resource)
        if info.verb == "get":
            return self._scale_view(request).outcome(Outcome(read_scale(self._context, resource, *key)))
        change: Any
        scale_resource = _SCALE
        if info.verb == "update":
            change = (await self._body(request, scale_resource)).value
            options = self._write_options(request, resource, "UpdateOptions")
        elif info.verb == "patch":
            media_type = bodies.media_type(request.headers.get("content-type", ""))
            check_media_type(resource, media_type)
            change = patcher(scale_resource, media_type, (await self._patch_body(request, media_type)).value)
            options = self._write_options(request, resource, "PatchOptions")
        else:
            raise MethodNotAllowed(_NOT_ALLOWED)
        outcome = await update_scale(self._context, resource, scale_resource, *key, change, options)
        return self._scale_view(request).outcome(outcome)

    def _scale_view(self, request: ServerRequest) -> View:
        return View(self._context, _SCALE, request.headers, request.query)

    def _precedes_access(self, request: ServerRequest, info: RequestInfo, resource: Resource) -> bool:
        """Whether a client reads a pod because it is about to run a command in it or to forward a port of it. kubectl
        reads the pod first, and gives up if there is none."""
        subresource = _ACCESS_COMMANDS.get(request.headers["kubectl-command"])
        if subresource is None or resource.type.group_resource != POD.plural:
            return False
        with suppress(Forbidden):
            self._authorizer.require(request.user, replace(info, verb="create", subresource=subresource))
            return True
        return False

    @staticmethod
    def _key(info: RequestInfo, resource: Resource) -> Key:
        if not info.name or (resource.type.namespaced and not info.namespace):
            raise MethodNotAllowed(_NOT_ALLOWED)
        return shared_key(info.namespace if resource.type.namespaced else "", info.name)

    @staticmethod
    def _scope(info: RequestInfo, resource: Resource) -> str | None:
        return info.namespace or None if resource.type.namespaced else None

    async def _body(self, request: ServerRequest, resource: Resource) -> Body:
        if request.object is not None:
            return Body(request.object)
        content_type = request.headers.get("content-type", "")
        if len(request.body) > LARGE and bodies.is_yaml(content_type):
            return await bodies.of_yaml(self._yaml_worker.decode(request.body), resource.type)
        if self._is_large(request):
            decode = partial(bodies.decode, request.body, content_type, resource.type)
            return await self._offload.call(request.user.name, decode)
        return bodies.decode(request.body, content_type, resource.type)

    async def _patch_body(self, request: ServerRequest, media_type: str) -> Body:
        if request.object is not None:
            return Body(request.object)
        if len(request.body) > LARGE and bodies.is_yaml_patch(request.body, media_type):
            return await self._yaml_worker.decode(request.body)
        if self._is_large(request):
            return await self._offload.call(request.user.name, partial(bodies.decode_patch, request.body, media_type))
        return bodies.decode_patch(request.body, media_type)

    @staticmethod
    def _delete_options(request: ServerRequest) -> Any:
        body = request.object
        if body is None and request.body.strip():
            content_type = request.headers.get("content-type", "")
            if len(request.body) > LARGE:
                raise TooLarge(f"the options of a deletion have {len(request.body)} bytes; the limit is {LARGE}")
            body = bodies.decode(request.body, content_type).value
        return delete_options(request.query, body)

    def _write_options(
        self, request: ServerRequest, resource: Resource, kind: str, *, applying: bool = False
    ) -> WriteOptions:
        guard = self._admission.guard(request.user, resource)
        # A caller in this process asks for the same few options with every request.
        remembered = None
        if request.object is not None and guard is None:
            remembered = (kind, applying, request.headers.get("user-agent"), *request.query.items())
            if (known := self._known_options.get(remembered)) is not None:
                return known
        manager = request.query.get("fieldManager", "")
        validate_manager(manager, applying=applying, options=kind)
        if "force" in request.query and kind == "PatchOptions" and not applying:
            why = "Forbidden: may not be specified for non-apply patch"
            raise refused(kind, Cause("force", "FieldValueForbidden", why))
        manager = manager or manager_from_user_agent(request.headers.get("user-agent", ""))
        options = write_options(request.query, manager, kind, guard)
        if remembered is not None and len(self._known_options) < _MOST_OPTIONS:
            self._known_options[remembered] = options
        return options


def _guarded_on_loop(context: OffloadedContext, options: WriteOptions) -> WriteOptions:
    """Options whose check of permissions runs on the event loop."""
    guard = options.guard
    if guard is None:
        return options
    return replace(options, guard=lambda new, old: context.on_loop(partial(guard, new, old)))
