"""Answers about one object: the reason for its state, the calls about a claim, the processes and logs of a sandbox."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final, cast

from aiohttp import web

from sandpool.dashboard.guard import Guard
from sandpool.dashboard.requests import EXPECTED, BadRequest, failure, object_name, sandbox_of
from sandpool.dashboard.target import PROGRAM, DashboardTarget
from sandpool.engine.clock import Clock
from sandpool.explain.calls import Call, NotAnAuditLog
from sandpool.explain.claim import Explanation
from sandpool.explain.objects import explain_object
from sandpool.explain.request import who
from sandpool.explain.timeline import Step, objects_of_claim, timeline
from sandpool.kube.errors import ApiError
from sandpool.kube.pod_client import LogOptions
from sandpool.kube.user_agent import is_of_program
from sandpool.service.errors import NotRunning, ServiceError
from sandpool.service.filesystem import Entry
from sandpool.service.sandboxes import Sandbox

_KINDS: Final = frozenset({"claim", "sandbox", "pool", "template"})
#: Bytes of a file that are shown as text.
_PREVIEW: Final = 256 << 10
_PREVIEW_SECONDS: Final = 15.0
_ENTRIES: Final = 1000
_LONGEST_PATH: Final = 4096
_LOG_LINES: Final = 1000
_STEPS: Final = 400


class Inspections:
    """Handlers that only read."""

    def __init__(self, target: DashboardTarget, guard: Guard, clock: Clock) -> None:
        self.target = target
        self.guard = guard
        self.clock = clock

    async def _sandbox(self, request: web.Request) -> Sandbox:
        """The sandbox of a request. One that sleeps would be resumed by what reads it, which is a change."""
        sandbox = await sandbox_of(request, self.target)
        if sandbox.asleep and self.guard.options.read_only:
            raise NotRunning(f"sandbox {sandbox.shown_name} is asleep", "This dashboard is read-only and wakes none.")
        return sandbox

    async def why(self, request: web.Request) -> Any:
        """The explanation of ``sandpool why``."""
        kind = request.match_info["kind"]
        if kind not in _KINDS:
            raise BadRequest("there is no such kind")
        namespace, name = object_name(request, self.target)
        return _explained(await explain_object(self.target.client, kind, namespace, name, self.clock.now()))

    async def trace(self, request: web.Request) -> Any:
        """The timeline of ``sandpool trace claim``; ``available`` tells whether there is a log to read."""
        namespace, name = object_name(request, self.target)
        lines = self.target.audit_log
        if lines is None:
            return {"available": False, "steps": []}
        created = await self._created(namespace, name)

        def read() -> tuple[list[Step], bool]:
            related = objects_of_claim(lines, namespace, name, created)
            steps = [step for step in timeline(lines, related) if not _is_own_read(step)]
            return steps, bool(related.sandboxes)

        try:
            steps, has_sandbox = await asyncio.to_thread(read)
        except (OSError, NotAnAuditLog) as error:
            raise ServiceError(f"the audit log cannot be read: {error}") from error
        return {
            "available": True,
            "hasSandbox": has_sandbox,
            "steps": _waterfall(steps[:_STEPS]),
            "more": max(0, len(steps) - _STEPS),
        }

    async def _created(self, namespace: str, name: str) -> datetime | None:
        """When the claim was created; None if it is gone: then the log tells of the last one of its name."""
        claim = await self.target.service(namespace).claims.find(name)
        return None if claim is None else datetime.fromisoformat(claim.created)

    async def activity(self, request: web.Request) -> Any:
        """The processes of a sandbox, and the ports that they listen on."""
        sandbox = await self._sandbox(request)
        inspection = self.target.service(sandbox.namespace).inspection
        processes, ports = await asyncio.gather(inspection.processes(sandbox), inspection.ports(sandbox))
        return {"processes": [asdict(each) for each in processes], "ports": ports}

    async def directory(self, request: web.Request) -> Any:
        """The entries of a directory; ``truncated`` if there are more."""
        sandbox = await self._sandbox(request)
        filesystem = self.target.service(sandbox.namespace).filesystem
        path = file_path(request) or "."
        entries = await filesystem.list(sandbox, path)
        here = posixpath.dirname(entries[0].path) if entries else (await filesystem.stat(sandbox, path)).path
        shown = [_entry(each) for each in entries[:_ENTRIES]]
        return {"path": here, "entries": shown, "truncated": len(entries) > _ENTRIES}

    async def preview(self, request: web.Request) -> Any:
        """The beginning of a file as text; ``text`` is None for a file that is not text."""
        sandbox = await self._sandbox(request)
        content = bytearray()
        async with (
            asyncio.timeout(_PREVIEW_SECONDS),
            self.target.service(sandbox.namespace).filesystem.reading(sandbox, file_path(request)) as pieces,
        ):
            async for piece in pieces:
                content += piece
                if len(content) > _PREVIEW:
                    break
        more = len(content) > _PREVIEW
        return {"text": _text(bytes(content[:_PREVIEW]), cut=more), "more": more, "size": len(content)}

    async def download(self, request: web.Request) -> web.StreamResponse:
        """A file, as a download: it is never shown as a page of this origin."""
        async with AsyncExitStack() as stack:
            try:
                sandbox = await self._sandbox(request)
                filesystem = self.target.service(sandbox.namespace).filesystem
                pieces = await stack.enter_async_context(filesystem.reading(sandbox, file_path(request)))
            except EXPECTED as error:
                return failure(error)
            response = web.StreamResponse(
                headers={"Content-Type": "application/octet-stream", "Content-Disposition": "attachment"}
            )
            self.guard.add_headers(response)
            await response.prepare(request)
            async for piece in pieces:  # a failure breaks the connection, so that the file is not taken for complete
                await response.write(piece)
            return response

    async def logs(self, request: web.Request) -> web.StreamResponse:
        """The log of the sandbox's main process, followed until the browser leaves."""
        try:
            sandbox = await self._sandbox(request)
            options = LogOptions(sandbox.container, follow=True, tail=_LOG_LINES)
            pieces = self.target.service(sandbox.namespace).sandboxes.logs(sandbox, options)
            first = await anext(pieces, b"")
        except EXPECTED as error:
            return failure(error)
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        self.guard.add_headers(response)
        async with aclosing(cast("Any", pieces)) as rest:
            await response.prepare(request)
            await response.write(first or b"\n")
            try:
                async for piece in rest:
                    await response.write(piece)
            except (ServiceError, ApiError) as error:
                await response.write(f"\n{error}\n".encode())
        return response


def file_path(request: web.Request) -> str:
    """The path of a file in the query of a request."""
    path = request.query.get("path", "")
    if "\0" in path or len(path) > _LONGEST_PATH:
        raise BadRequest("this is not a path")
    return path


def _entry(entry: Entry) -> dict[str, Any]:
    # Names are bytes. Those that are no text are shown, and cannot be opened.
    name = entry.name.encode(errors="surrogateescape").decode(errors="replace")
    return {
        "name": name,
        "type": entry.type,
        "isLink": entry.link is not None,
        "size": entry.size,
        "modified": entry.modified.timestamp(),
        "mode": entry.permissions,
    }


def _text(content: bytes, *, cut: bool) -> str | None:
    """The content as text; None if it is none. The last character of a beginning may be incomplete."""
    if b"\0" in content:
        return None
    try:
        return content.decode(errors="ignore" if cut else "strict")
    except UnicodeDecodeError:
        return None


def _explained(explanation: Explanation) -> Any:
    chain = [{"at": None if each.at is None else each.at.timestamp(), "text": each.text} for each in explanation.chain]
    return {
        "sentence": explanation.sentence,
        "chain": chain,
        "advice": explanation.advice,
        "unknown": explanation.unknown,
    }


def _is_own_read(step: Step) -> bool:
    """Whether the dashboard read an object to show it. What its users do in the sandbox stays."""
    if not isinstance(step.entry, Call):
        return False
    asked = step.entry.request
    return asked.verb == "get" and not asked.subresource and is_of_program(asked.agent, PROGRAM)


def _waterfall(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Steps with their start since the first one, in ms."""
    if not steps:
        return []
    begin = steps[0].entry.started
    return [{**_step(step), "start": round((step.entry.started - begin).total_seconds() * 1000, 2)} for step in steps]


def _step(step: Step) -> dict[str, Any]:
    entry = step.entry
    common = {"took": round(entry.seconds * 1000, 2), "purpose": step.purpose}
    if isinstance(entry, Call):
        asked = entry.request
        where = "/".join(filter(None, (asked.resource, asked.name, asked.subresource)))
        kind = "write" if asked.writes else "read"
        return {
            **common,
            "kind": kind,
            "creates": entry.creates,
            "verb": asked.verb,
            "about": where,
            "result": str(asked.code),
            "who": who(asked),
        }
    about = f"{entry.kind}/{entry.name}"
    result = "error" if entry.problem else "ok"
    return {
        **common, "kind": "reconcile", "verb": "reconcile", "about": about, "result": result, "who": entry.controller
    }  # fmt: skip
