"""The API server's calls for one claim over time: the half of the latency that a client does not see.

The audit log uses the server's clock. Where that differs from the clock of the load, the create call would seem to
arrive before it was sent or after its response. Then all times are shifted so that it arrives when it was sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandpool.bench.load import Claim
from sandpool.explain.calls import Call
from sandpool.explain.request import AuditedRequest
from sandpool.explain.timeline import RelatedObjects, timeline

_CREATED: Final = "create sandboxclaims"
#: Purposes of calls that are the same for every controller. Other calls are shown as verb and resource.
PURPOSES: Final = {
    _CREATED: "claim created",
    "patch sandboxes": "sandbox adopted",
    "patch sandboxclaims/status": "claim status written",
    "patch sandboxclaims": "notes on the claim",
    "patch pods": "labels of the pod",
    "create events": "event",
}


@dataclass(frozen=True, slots=True)
class ServerCall:
    """One call from its arrival at the API server to its response, in the time of the load."""

    what: str
    writer: str
    begin: float
    end: float
    code: int


def calls_about(
    log: Path, namespace: str, claim: Claim, writer: Callable[[AuditedRequest], str], origin: float
) -> list[ServerCall]:
    """Return the writes for a claim, its sandbox and its pod in order of arrival.

    ``origin`` is the difference between wall-clock time and the time of the load."""

    def lines() -> list[bytes]:
        with log.open("rb") as file:
            return file.readlines()

    found = timeline(
        lines, RelatedObjects(namespace, frozenset({claim.name}), frozenset({claim.sandbox})), writes_only=True
    )
    calls = [step.entry for step in found if isinstance(step.entry, Call)]
    created = next((call for call in calls if str(call.request) == _CREATED), None)
    if created is None:
        return []
    begin = created.started.timestamp() - origin
    if not claim.sent <= begin <= (claim.answered or begin):
        origin += begin - claim.sent
    return [_server_call(call, writer, origin) for call in calls if call.started >= created.started]


def _server_call(call: Call, writer: Callable[[AuditedRequest], str], origin: float) -> ServerCall:
    what, begin = str(call.request), call.started.timestamp() - origin
    return ServerCall(PURPOSES.get(what, what), writer(call.request), begin, begin + call.seconds, call.request.code)
