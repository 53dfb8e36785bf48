"""JSON encoding of the requests to the launcher. ``messages`` sends them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from sandpool.node.launcher.enter import EnterRequest
from sandpool.node.launcher.runsc_call import RunscCallRequest
from sandpool.node.launcher.spawn_container import ContainerRequest
from sandpool.node.launcher.unconfined import UnconfinedRequest
from sandpool.node.launcher.unprivileged import DialRequest, HoldNamespacesRequest
from sandpool.node.runtimes.spec_codec import pod_from_json, pod_to_json, spec_from_json, spec_to_json

LaunchRequest = (
    ContainerRequest | EnterRequest | UnconfinedRequest | RunscCallRequest | HoldNamespacesRequest | DialRequest
)
_VERBS: Final[dict[str, type[Any]]] = {
    kind.__name__: kind
    for kind in (
        ContainerRequest,
        EnterRequest,
        UnconfinedRequest,
        RunscCallRequest,
        HoldNamespacesRequest,
        DialRequest,
    )
}


def encode(request: LaunchRequest) -> bytes:
    """Encode a request without its descriptors, which are sent separately, and its filter, which the launcher has."""
    data: dict[str, Any] = request._asdict() | {"verb": type(request).__name__}
    del data["stdio"], data["filter"]
    if isinstance(request, ContainerRequest):
        data |= {"pod": pod_to_json(request.pod), "spec": spec_to_json(request.spec), "programs": str(request.programs)}
    return json.dumps(data).encode()


def decode(data: bytes, stdio: list[int], seccomp_filter: bytes) -> LaunchRequest:
    fields: dict[str, Any] = json.loads(data) | {"stdio": stdio, "filter": seccomp_filter}
    kind = _VERBS[fields.pop("verb")]
    if kind is ContainerRequest:
        pod, spec = pod_from_json(fields["pod"]), spec_from_json(fields["spec"])
        fields |= {"pod": pod, "spec": spec, "programs": Path(fields["programs"])}
    request: LaunchRequest = kind(**fields)
    return request
