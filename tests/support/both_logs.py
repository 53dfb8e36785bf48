"""One audit log of a cluster with the storage ``aggregated``, read from the two that it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any

from sandpool.explain.audit import Audit, AuditedRequest, request_of_kubernetes, request_of_sandpool


class BothLogs(Audit):
    """The requests to kube-apiserver, and those of the controllers in the process of our kinds, which it does not see.

    ``own`` is the log of that process, in which the controllers have the name ``controllers``, and ``account`` is their
    name in that of kube-apiserver. Here they have the former."""

    def __init__(
        self, path: Path, own: Path, controllers: str, account: str, flush: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(path, self._of_kubernetes)
        self._own = Audit(own, self._of_sandpool, flush)
        self._controllers = controllers
        self._account = account
        self._new: list[tuple[datetime, AuditedRequest]] = []  # with the time of the response
        self._both: list[AuditedRequest] = []

    def requests(
        self, *, since: int = 0, namespace: str | None = None, user: str | None = None
    ) -> list[AuditedRequest]:
        """See ``Audit.requests``."""
        super().requests()
        self._own.requests()
        self._both += [request for _, request in sorted(self._new, key=itemgetter(0))]
        self._new.clear()
        return [
            each for each in self._both[since:] if namespace in (None, each.namespace) and user in (None, each.user)
        ]

    def _of_kubernetes(self, line: Any) -> AuditedRequest:
        request = request_of_kubernetes(line)
        request = replace(request, user=self._controllers) if request.user == self._account else request
        self._new.append((datetime.fromisoformat(line["stageTimestamp"]), request))
        return request

    def _of_sandpool(self, line: Any) -> AuditedRequest:
        request = request_of_sandpool(line)
        if request.user == self._controllers:  # the others are those of kube-apiserver, once more
            began, lasted = datetime.fromisoformat(line["time"]), timedelta(milliseconds=line["latencyMs"])
            self._new.append((began + lasted, request))
        return request
