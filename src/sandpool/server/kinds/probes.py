"""Probes and lifecycle hooks of containers: defaults and validation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sandpool.api.causes import Cause, forbidden, invalid, not_supported, required
from sandpool.api.resource import Object
from sandpool.server import names
from sandpool.server.kinds.copy_on_write import fill_absent, fill_empty, inside

_PROBE: Final = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_HTTP_GET: Final = {"path": "/", "scheme": "HTTP"}
_HANDLERS: Final = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_COUNTS: Final = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")

PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")


def default_probe(probe: Object) -> Object:
    probe = fill_empty(default_handler(probe), _PROBE)
    return inside(probe, "grpc", lambda grpc: fill_absent(grpc, {"service": ""}))


def default_handler(handler: Object) -> Object:
    return inside(handler, "httpGet", lambda get: fill_empty(get, _HTTP_GET))


def default_lifecycle(lifecycle: Object) -> Object:
    return inside(inside(lifecycle, "postStart", default_handler), "preStop", default_handler)


def validate_probes(container: Object, grace: int | None, path: str) -> Iterator[Cause]:
    for kind in PROBES:
        probe = container.get(kind)
        if probe is None:
            continue
        at = f"{path}.{kind}"
        yield from validate_handler(probe, grace, at)
        for field in _COUNTS:
            if (probe.get(field) or 0) < 0:
                yield invalid(f"{at}.{field}", probe[field], "must be greater than or equal to 0")
        seconds = probe.get("terminationGracePeriodSeconds")
        if seconds is not None and seconds <= 0:
            yield invalid(f"{at}.terminationGracePeriodSeconds", seconds, "must be greater than 0")
        if kind == "readinessProbe":
            if seconds is not None:
                yield invalid(f"{at}.terminationGracePeriodSeconds", seconds, "must not be set for readinessProbes")
        elif probe.get("successThreshold") != 1:
            yield invalid(f"{at}.successThreshold", probe.get("successThreshold"), "must be 1")


def validate_lifecycle(lifecycle: Object, grace: int | None, path: str) -> Iterator[Cause]:
    for hook in ("postStart", "preStop"):
        if (handler := lifecycle.get(hook)) is not None:
            yield from validate_handler(handler, grace, f"{path}.{hook}")


def validate_handler(handler: Object, grace: int | None, path: str) -> Iterator[Cause]:
    given = [kind for kind in _HANDLERS if handler.get(kind) is not None]
    if not given:
        yield required(path, "must specify a handler type")
        return
    yield from _validate_action(given[0], handler[given[0]], grace, f"{path}.{given[0]}")
    for kind in given[1:]:
        yield forbidden(f"{path}.{kind}", "may not specify more than 1 handler type")


def _validate_action(kind: str, action: Object, grace: int | None, path: str) -> Iterator[Cause]:
    if kind == "exec":
        if not action.get("command"):
            yield required(f"{path}.command")
    elif kind == "sleep":
        seconds = action.get("seconds") or 0
        if grace is not None and not 0 <= seconds <= grace:
            yield invalid(path, seconds, f"must be non-negative and less than terminationGracePeriodSeconds ({grace})")
    else:
        yield from validate_port(action.get("port"), f"{path}.port")
    if kind == "httpGet":
        if action.get("scheme") not in ("HTTP", "HTTPS"):
            yield not_supported(f"{path}.scheme", action.get("scheme"), ("HTTP", "HTTPS"))
        for header in action.get("httpHeaders") or ():
            for why in names.http_header(header.get("name") or ""):
                yield invalid(f"{path}.httpHeaders", header.get("name") or "", why)


def validate_port(port: Any, path: str) -> Iterator[Cause]:
    """Validate a port, given by number or by the name of a container port."""
    if isinstance(port, str):
        yield from (invalid(path, port, why) for why in names.port_name(port))
    elif not 1 <= (port or 0) <= 65535:
        yield invalid(path, port or 0, "must be between 1 and 65535, inclusive")
