"""Responses of the control plane: sandboxes as E2B describes them, and the filters of its lists. Pure functions."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_plus

from sandpool.api.quantity import parse
from sandpool.e2b.access import Tokens
from sandpool.e2b.claims import SandboxClaim
from sandpool.e2b.errors import Refusal
from sandpool.service.sandboxes import Sandbox

#: The version of E2B's daemon whose protocol the endpoint speaks. Clients refuse by themselves what is newer.
ENVD_VERSION: Final = "0.6.4"
RUNNING: Final = "running"
PAUSED: Final = "paused"
_STATES: Final = frozenset({RUNNING, PAUSED})
_CLIENT: Final = "sandpool"
_MAX_PAGE: Final = 100
_MIB: Final = 1 << 20


def created(claim: SandboxClaim, tokens: Tokens, domain: str) -> dict[str, Any]:
    """The answer to a creation, and to a connection."""
    return {
        "sandboxID": claim.id,
        "templateID": claim.request.template,
        "alias": claim.claim.pool,
        "clientID": _CLIENT,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": tokens.access,
        "trafficAccessToken": tokens.traffic,
        "domain": domain,
    }


def listed(claim: SandboxClaim, sandbox: Sandbox | None) -> dict[str, Any]:
    """A sandbox in a list."""
    resources = limits(sandbox)
    return {
        "sandboxID": claim.id,
        "templateID": claim.request.template,
        "alias": claim.claim.pool,
        "clientID": _CLIENT,
        "startedAt": timestamp(claim.started),
        "endAt": timestamp(claim.end),
        "cpuCount": resources.cpus,
        "memoryMB": resources.memory // _MIB,
        "diskSizeMB": resources.disk // _MIB,
        "metadata": dict(claim.request.metadata),
        "state": state(sandbox),
        "envdVersion": ENVD_VERSION,
    }


def detail(claim: SandboxClaim, sandbox: Sandbox | None, tokens: Tokens, domain: str) -> dict[str, Any]:
    """Everything about one sandbox."""
    return {
        **listed(claim, sandbox),
        "envdAccessToken": tokens.access,
        "domain": domain,
        "network": {"allowPublicTraffic": claim.request.public_ports},
        "lifecycle": {"autoResume": False, "onTimeout": "kill"},
    }


def state(sandbox: Sandbox | None) -> str:
    return PAUSED if sandbox is not None and sandbox.suspended else RUNNING


def timestamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a sandbox: CPUs, and bytes. Zero is no limit."""

    cpus: int = 0
    memory: int = 0
    disk: int = 0


def limits(sandbox: Sandbox | None) -> Limits:
    """The sum of the limits of a sandbox's containers. CPUs are rounded up, because E2B counts whole ones."""
    if sandbox is None:
        return Limits()
    pod = ((sandbox.object.get("spec") or {}).get("podTemplate") or {}).get("spec") or {}
    found = [(each.get("resources") or {}).get("limits") or {} for each in pod.get("containers") or ()]
    cpus, memory, disk = (
        sum(_amount(each.get(name)) for each in found) for name in ("cpu", "memory", "ephemeral-storage")
    )
    return Limits(-int(-cpus // 1), int(memory), int(disk))


def _amount(quantity: Any) -> float:
    try:
        return parse(quantity).billionths / 1e9 if quantity is not None else 0.0
    except ValueError:
        return 0.0


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The filters and the page of a list."""

    metadata: Mapping[str, str]
    states: frozenset[str]
    started_after: datetime | None
    template: str
    newest_first: bool
    limit: int
    after: tuple[str, str] | None  # start and ID of the last sandbox of the page before

    @classmethod
    def of(cls, query: Mapping[str, str]) -> ListQuery:
        """Read the query of a request. Raises ``Refusal``."""
        states = frozenset(filter(None, query.get("state", "").split(",")))
        if not states <= _STATES:
            raise Refusal(400, f"state must be one of {', '.join(sorted(_STATES))}")
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise Refusal(400, "order must be asc or desc")
        return cls(
            # Clients encode names and values once more than the query is encoded.
            metadata={
                unquote_plus(name): unquote_plus(value)
                for name, value in parse_qsl(query.get("metadata", ""), keep_blank_values=True)
            },
            states=states or _STATES,
            started_after=_moment(query.get("startedAfter", "")),
            template=query.get("template", ""),
            newest_first=order == "desc",
            limit=_limit(query.get("limit", "")),
            after=_decoded(query.get("nextToken", "")),
        )


def page(query: ListQuery, sandboxes: Iterable[tuple[SandboxClaim, Sandbox | None]]) -> tuple[Sequence[Any], str]:
    """The sandboxes of a page, and the token of the next one, empty for the last. A sandbox that starts or ends between
    two pages moves no other one."""
    fitting = [(claim, sandbox) for claim, sandbox in sandboxes if _fits(query, claim, sandbox)]
    fitting.sort(key=lambda each: _position(each[0]), reverse=query.newest_first)
    if (after := query.after) is not None:
        fitting = [
            each
            for each in fitting
            if (_position(each[0]) < after if query.newest_first else _position(each[0]) > after)
        ]
    shown = fitting[: query.limit]
    more = len(fitting) > query.limit
    return [listed(*each) for each in shown], _encoded(_position(shown[-1][0])) if more else ""


def _fits(query: ListQuery, claim: SandboxClaim, sandbox: Sandbox | None) -> bool:
    return (
        state(sandbox) in query.states
        and (query.started_after is None or claim.started >= query.started_after)
        and query.template in ("", claim.request.template, claim.claim.pool)
        and all(claim.request.metadata.get(name) == value for name, value in query.metadata.items())
    )


def _position(claim: SandboxClaim) -> tuple[str, str]:
    return claim.claim.created, claim.id


def _encoded(position: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode("|".join(position).encode()).decode()


def _decoded(token: str) -> tuple[str, str] | None:
    if not token:
        return None
    try:
        created, _, sandbox_id = base64.b64decode(token, altchars=b"-_", validate=True).decode().partition("|")
    except (binascii.Error, ValueError):
        raise Refusal(400, "nextToken is not one that a list returned") from None
    return created, sandbox_id


def _limit(text: str) -> int:
    if not text:
        return _MAX_PAGE
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:6]) <= _MAX_PAGE:
        raise Refusal(400, f"limit must be a number from 1 to {_MAX_PAGE}")
    return int(text)


def _moment(text: str) -> datetime | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError:
        raise Refusal(400, "startedAfter must be a time such as 2026-01-31T12:00:00Z") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
