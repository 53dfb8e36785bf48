"""What the launcher can be asked for, as it is written. How it is sent is in ``messages``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from sandpool.node.launcher.enter import Entry
from sandpool.node.launcher.runsc_call import Call
from sandpool.node.launcher.spawn_container import Birth
from sandpool.node.launcher.unconfined import Plain
from sandpool.node.launcher.unprivileged import Dial, Hold
from sandpool.node.runtimes.spec_codec import pod_from_json, pod_to_json, spec_from_json, spec_to_json

Order = Birth | Entry | Plain | Call | Hold | Dial
_VERBS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in (Birth, Entry, Plain, Call, Hold, Dial)}


def encode(order: Order) -> bytes:
    """Everything but the descriptors and the filter, which the launcher has."""
    data: dict[str, Any] = order._asdict() | {"verb": type(order).__name__}
    del data["stdio"], data["filter"]
    if isinstance(order, Birth):
        data |= {"pod": pod_to_json(order.pod), "spec": spec_to_json(order.spec), "programs": str(order.programs)}
    return json.dumps(data).encode()


def decode(data: bytes, stdio: list[int], filter: bytes) -> Order:
    fields: dict[str, Any] = json.loads(data) | {"stdio": stdio, "filter": filter}
    kind = _VERBS[fields.pop("verb")]
    if kind is Birth:
        pod, spec = pod_from_json(fields["pod"]), spec_from_json(fields["spec"])
        fields |= {"pod": pod, "spec": spec, "programs": Path(fields["programs"])}
    order: Order = kind(**fields)
    return order
