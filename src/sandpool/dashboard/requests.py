"""Decoding of requests, and answers for expected failures, which are the same for all pages."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson
from aiohttp import web

from sandpool.dashboard.guard import Handler, refusal
from sandpool.dashboard.target import DashboardTarget
from sandpool.kube.errors import ApiError
from sandpool.sdk.errors import SandpoolError
from sandpool.service.errors import CommandFailed, NameTaken, NotReadyInTime, NotRunning, ServiceError, UnknownName
from sandpool.service.sandboxes import Sandbox

MAX_BODY: Final = 1 << 20
#: Names of namespaces and objects, as the API accepts them.
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_STATUS: Final[dict[type[Exception], int]] = {
    UnknownName: 404,
    NameTaken: 409,
    NotRunning: 409,
    NotReadyInTime: 504,
    CommandFailed: 502,
}


class BadRequest(Exception):
    """The request is not one that our pages send."""


#: Failures that are answers: of users, of the API, of sandboxes and of networks.
EXPECTED: Final = (ServiceError, ApiError, SandpoolError, BadRequest, OSError, TimeoutError)


def answered(work: Callable[[web.Request], Awaitable[Any]]) -> Handler:
    """A handler that sends what ``work`` returns as JSON, and expected failures as an error with advice."""

    async def serve(request: web.Request) -> web.StreamResponse:
        try:
            found = await work(request)
        except EXPECTED as error:
            return failure(error)
        if isinstance(found, web.StreamResponse):
            return found
        return web.Response(body=orjson.dumps(found), content_type="application/json")

    return serve


def failure(error: Exception) -> web.Response:
    """The answer for an expected failure."""
    if isinstance(error, ServiceError | SandpoolError):
        status = _STATUS.get(type(error), 422)
        message, _, advice = str(error).partition("\n")
        return refusal(status, message, advice)
    if isinstance(error, ApiError):
        # 401 is for the session of the browser, not for that of the dashboard at the API.
        return refusal(502 if error.code == 401 else error.code, f"the API refused: {error}")
    if isinstance(error, BadRequest):
        return refusal(400, str(error))
    return refusal(502, f"the API cannot be reached: {str(error) or 'no answer in time'}")


async def body(request: web.Request) -> dict[str, Any]:
    """The JSON object in a request."""
    content = bytearray()
    while piece := await request.content.readany():
        content += piece
        if len(content) > MAX_BODY:
            raise BadRequest("the request is too large")
    try:
        decoded = orjson.loads(content or b"{}")
    except orjson.JSONDecodeError:
        decoded = None
    if not isinstance(decoded, dict):
        raise BadRequest("the request is not a JSON object")
    return decoded


def text(fields: dict[str, Any], name: str, default: str | None = None) -> str:
    """A text field."""
    value = fields.get(name, default)
    if not isinstance(value, str):
        raise BadRequest(f"{name} has to be text")
    return value


def number(fields: dict[str, Any], name: str, least: int, most: int) -> int:
    """A number within bounds."""
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadRequest(f"{name} has to be a number from {least} to {most}")
    return value


def object_name(request: web.Request, target: DashboardTarget) -> tuple[str, str]:
    """Namespace and name in the path of a request."""
    namespace, name = request.match_info["namespace"], request.match_info["name"]
    check_namespace(namespace, target)
    if not _NAME.fullmatch(name):
        raise BadRequest("this is not a name")
    return namespace, name


def check_namespace(namespace: str, target: DashboardTarget) -> None:
    """Raise for a namespace that this dashboard does not show."""
    if not _NAME.fullmatch(namespace):
        raise BadRequest("this is not the name of a namespace")
    if target.namespace not in (None, namespace):
        raise UnknownName(f'this dashboard shows namespace "{target.namespace}" only')


async def sandbox_of(request: web.Request, target: DashboardTarget) -> Sandbox:
    """The sandbox that the path of a request names."""
    namespace, name = object_name(request, target)
    return await target.service(namespace).sandboxes.get(name)
