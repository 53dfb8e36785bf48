"""The spec of a sandbox's pod: that of its pod template, with defaults of containers, and the claimed volumes.

Two defaults differ from those of the API, and only where the author of the template has said nothing:

* ``terminationMessagePolicy: FallbackToLogsOnError``. The last output of a container that fails is then part of the
  pod's status, and so of the conditions of sandbox, claim and pool.
* With the option ``small_requests``, a container that sets limits and no requests gets small requests
  (``sandpool.api.small_requests``) and not its limits.

The pods of a pool have one template, so the defaults are computed once for it.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from sandpool.api.resource import Object, SharedObject
from sandpool.api.small_requests import requests_within
from sandpool.api.views import SandboxView
from sandpool.api.views.sharing import PerPart
from sandpool.controllers.sandbox.volumes import pod_volumes

_MESSAGE_POLICY: Final = {"terminationMessagePolicy": "FallbackToLogsOnError"}


def pod_spec(sandbox: SandboxView, *, small_requests: bool = False) -> Object:
    """The spec of the pod to be created."""
    spec = (_with_small_requests if small_requests else _with_defaults)(sandbox.pod_template)
    if claimed := pod_volumes(sandbox):
        # Two volumes of one name are invalid; the volume claim template wins, since users add it on top.
        names = {volume["name"] for volume in claimed}
        kept = [volume for volume in spec.get("volumes") or () if volume.get("name") not in names]
        spec = {**spec, "volumes": [*kept, *claimed]}
    return spec


def _defaulted(pod_template: SharedObject, *, requests: bool) -> Object:
    spec = pod_template.get("spec") or {}
    lists = {key: spec[key] for key in ("initContainers", "containers") if isinstance(spec.get(key), list)}
    return {**spec, **{key: [_container(each, requests) for each in containers] for key, containers in lists.items()}}


def _container(container: Any, requests: bool) -> Any:
    """A container with its defaults. The API reports what is no container."""
    if not isinstance(container, dict):
        return container
    result = container if container.get("terminationMessagePolicy") else {**container, **_MESSAGE_POLICY}
    resources = container.get("resources") if requests else None
    if isinstance(resources, dict) and isinstance(limits := resources.get("limits"), dict):
        given = resources.get("requests") or {}
        if not isinstance(given, dict):
            return result
        if missing := {name: amount for name, amount in requests_within(limits).items() if name not in given}:
            result = {**result, "resources": {**resources, "requests": {**given, **missing}}}
    return result


_with_defaults: Final[PerPart[SharedObject, Object]] = PerPart(partial(_defaulted, requests=False), 1024)
_with_small_requests: Final[PerPart[SharedObject, Object]] = PerPart(partial(_defaulted, requests=True), 1024)
