"""The HTTP of the code interpreter: ``/execute`` and ``/contexts``."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, Final, cast

import orjson
from aiohttp import web

from sandpool.e2b.errors import Refusal
from sandpool.e2b.running import RunningSandbox

_BODY_SECONDS: Final = 60.0
_LINES: Final = "application/x-ndjson"


def check(request: web.Request, running: RunningSandbox) -> None:
    """Raise ``Refusal`` for a request without the token that it needs. Code needs the token for commands. For contexts
    the one for ports is enough, because the packages send no other: they show no state and run no code of theirs."""
    running.tokens.check(request.headers, traffic=_parts(request) != ("execute",))


async def serve(request: web.Request, running: RunningSandbox) -> web.StreamResponse:
    """Answer a request to the interpreter of a sandbox, after ``check``."""
    parts = _parts(request)
    match (request.method, *parts):
        case ("POST", "execute"):
            return await _execute(request, running)
        case ("GET", "contexts"):
            await running.sandbox()
            return web.json_response(running.contexts.list())
        case ("POST", "contexts"):
            body = await _json(request)
            with running.reached():
                made = await running.contexts.create(_text(body, "language"), _text(body, "cwd"))
            return web.json_response(made.document)
        case ("DELETE", "contexts", context_id):
            await running.contexts.remove(context_id)
            return web.Response(status=204)
        case ("POST", "contexts", context_id, "restart"):
            with running.reached():
                await running.contexts.get(context_id).restart()
            return web.Response(status=204)
    raise Refusal(404, f"{request.method} {request.path} is not supported by the interpreter")


def _parts(request: web.Request) -> tuple[str, ...]:
    return tuple(part for part in request.path.split("/") if part)


async def _execute(request: web.Request, running: RunningSandbox) -> web.StreamResponse:
    body = await _json(request)
    code, context_id, language = _text(body, "code"), _text(body, "context_id"), _text(body, "language")
    contexts = running.contexts
    context = contexts.get(context_id) if context_id else contexts.for_language(language)
    response = web.StreamResponse(headers={"Content-Type": _LINES})
    with running.reached():
        async with aclosing(cast("Any", context.execute(code, _variables(body)))) as events:
            async for event in events:
                if not response.prepared:
                    await response.prepare(request)
                await response.write(orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE))
    await response.write_eof()
    return response


async def _json(request: web.Request) -> dict[str, Any]:
    async with asyncio.timeout(_BODY_SECONDS):
        body = await request.read()
    try:
        document = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError:
        raise Refusal(400, "the body is not JSON") from None
    if not isinstance(document, dict):
        raise Refusal(400, "the body is not a JSON object")
    return document


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or "\0" in value:
        raise Refusal(400, f"{name} must be text")
    return value


def _variables(body: dict[str, Any]) -> dict[str, str]:
    given = body.get("env_vars")
    if given is None:
        return {}
    if not isinstance(given, dict) or not all(
        isinstance(value, str) and "\0" not in value and name and "=" not in name and "\0" not in name
        for name, value in given.items()
    ):
        raise Refusal(400, "env_vars must be a map of texts")
    return given
