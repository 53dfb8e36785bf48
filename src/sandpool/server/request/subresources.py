"""Subresources that perform an action: binding and evicting pods, issuing tokens, finalizing namespaces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sandpool.api.resource import Object, ResourceType
from sandpool.api.schema.core import definition
from sandpool.kube.errors import BadRequest
from sandpool.server.auth.token_request import TOKEN_REQUEST
from sandpool.server.kinds.pods import bind
from sandpool.server.kinds.strategies import KindStrategy
from sandpool.server.registry.context import RegistryContext
from sandpool.server.registry.decoding import expect_name, fit
from sandpool.server.registry.delete import delete
from sandpool.server.registry.update import store_update
from sandpool.server.request.messages import Response
from sandpool.server.request.options import WriteOptions, delete_options
from sandpool.server.resources import Resource

# Bodies of these subresources are never stored but are decoded like any other.
_BINDING = Resource(
    ResourceType("", "v1", "Binding", "bindings"), partial(definition, "io.k8s.api.core.v1.Binding"), KindStrategy()
)
_EVICTION = Resource(
    ResourceType("policy", "v1", "Eviction", "evictions"),
    partial(definition, "io.k8s.api.policy.v1.Eviction"),
    KindStrategy(),
)
_TOKEN_REQUEST = Resource(
    TOKEN_REQUEST, partial(definition, "io.k8s.api.authentication.v1.TokenRequest"), KindStrategy()
)

# Returns the TokenRequest with its token, for a service account.
TokenIssuer = Callable[[Object, Object], Object]


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a subresource."""

    resource: Resource
    namespace: str
    name: str
    body: Any
    options: WriteOptions


Action = Callable[[Call], Awaitable[Response]]


class Subresources:
    """The actions by resource, subresource and verb."""

    def __init__(self, context: RegistryContext, issue_token: TokenIssuer) -> None:
        self._context = context
        self._issue_token = issue_token
        self._actions: dict[tuple[str, str, str], Action] = {
            ("pods", "binding", "create"): self._bind,
            ("pods", "eviction", "create"): self._evict,
            ("serviceaccounts", "token", "create"): self._token,
            ("namespaces", "finalize", "update"): self._finalize,
        }

    def find(self, resource: Resource, subresource: str, verb: str) -> Action | None:
        return self._actions.get((resource.type.group_resource, subresource, verb))

    async def _bind(self, call: Call) -> Response:
        pod = self._context.current(call.resource, call.namespace, call.name)
        bound = bind(pod, _expect(call.body, _BINDING, call.name), self._context.now())
        await store_update(self._context, call.resource, bound, pod, call.options, subresource="binding")
        return _success(201)

    async def _evict(self, call: Call) -> Response:
        eviction = _expect(call.body, _EVICTION, call.name)
        options = delete_options({}, eviction.get("deleteOptions"))
        options = replace(options, dry_run=options.dry_run or call.options.dry_run)
        await delete(self._context, call.resource, call.namespace, call.name, options)
        return _success(201)

    async def _token(self, call: Call) -> Response:
        account = self._context.current(call.resource, call.namespace, call.name)
        return Response(201, object=self._issue_token(account, _expect(call.body, _TOKEN_REQUEST, "")))

    async def _finalize(self, call: Call) -> Response:
        """Replace ``spec.finalizers`` of a namespace, which no other write may. The last one removes the namespace."""
        old = self._context.current(call.resource, "", call.name)
        wanted = (_expect(call.body, call.resource, call.name).get("spec") or {}).get("finalizers") or []
        new = {**old, "spec": {**(old.get("spec") or {}), "finalizers": wanted}}
        if not wanted:
            del new["spec"]["finalizers"]
        outcome = await store_update(self._context, call.resource, new, old, call.options, subresource="finalize")
        return Response(object=outcome.object, encoded=outcome.encoded)


def _expect(body: Any, resource: Resource, name: str) -> Object:
    """Decode the body as the expected kind, of any version."""
    kind = resource.type.kind
    if not isinstance(body, dict) or (body.get("kind") or kind) != kind:
        raise BadRequest(f"the body must be a {kind}")
    decoded, _ = fit(resource, body, None, "Ignore", [])
    if name:
        expect_name(decoded.get("metadata") or {}, name)
    return decoded


def _success(code: int) -> Response:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code}
    return Response(code, object=status)
