"""Query options of ``exec``, ``attach`` and ``log``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import parse_qsl

from sandpool.kube.errors import BadRequest
from sandpool.kube.pod_access import LogQuery
from sandpool.server.request.request_info import truthy

#: Log options that the API server forwards to a kubelet under the same names.
LOG_PARAMETERS: Final = ("follow", "previous", "timestamps", "sinceSeconds", "sinceTime", "tailLines", "limitBytes")


class StreamQuery:
    """Query parameters, which may be repeated."""

    def __init__(self, text: str) -> None:
        self._pairs = parse_qsl(text, keep_blank_values=True)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def get(self, name: str) -> str:
        return next(iter(self.all(name)), "")

    def flag(self, name: str) -> bool:
        found = self.all(name)
        return bool(found) and truthy(found[0])

    def number(self, name: str) -> int | None:
        text = self.get(name)
        if not text:
            return None
        try:
            number = int(text)
        except ValueError:
            raise BadRequest(f'{name}: "{text}" is not a number') from None
        if number < 0:
            raise BadRequest(f"{name}: must be greater than or equal to 0")
        return number


@dataclass(frozen=True, slots=True)
class StdStreams:
    """The standard streams that a client requests."""

    stdin: bool
    stdout: bool
    stderr: bool
    terminal: bool

    @classmethod
    def read(cls, query: StreamQuery, names: Mapping[str, str]) -> StdStreams:
        """``names`` maps streams to parameters. Raises ``BadRequest`` if no stream is requested."""
        wanted = {name: query.flag(parameter) for name, parameter in names.items()}
        if not any(wanted.values()):
            raise BadRequest("you must specify at least 1 of stdin, stdout, stderr")
        return cls(**wanted, terminal=query.flag("tty"))


#: Parameter names of the streams at the API server and at a kubelet.
API_NAMES: Final = {"stdin": "stdin", "stdout": "stdout", "stderr": "stderr"}
KUBELET_NAMES: Final = {"stdin": "input", "stdout": "output", "stderr": "error"}


def command(query: StreamQuery) -> tuple[str, ...]:
    found = tuple(query.all("command"))
    if not found:
        raise BadRequest("you must specify at least one command to execute")
    return found


def log_query(query: StreamQuery, container: str, now: datetime) -> LogQuery:
    since = query.number("sinceSeconds")
    earliest = None if since is None else now.timestamp() - since
    if text := query.get("sinceTime"):
        earliest = _time(text)
    return LogQuery(
        container=container,
        follow=query.flag("follow"),
        previous=query.flag("previous"),
        timestamps=query.flag("timestamps"),
        since=earliest,
        tail=query.number("tailLines"),
        limit=query.number("limitBytes"),
    )


def _time(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise BadRequest(f'sinceTime: "{text}" is not a time') from None
