"""What agent and launcher say to each other.

An order is a message with a number and, as descriptors, a file in memory that holds the order as JSON, three for
standard input, output and error, and for a call one more. Answers are JSON: ``{"order", "pid"}`` with a descriptor of
the process when it was executed, or ``{"order", "error", "kind"}``; and, once it has ended, ``{"order", "ended": wait
status}``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from sandpool.node.launcher.birth import Birth
from sandpool.node.launcher.call import Call
from sandpool.node.launcher.entry import Entry
from sandpool.node.launcher.plain import Plain
from sandpool.node.runtimes.record import pod_from_json, pod_to_json, spec_from_json, spec_to_json

# The longest message in either direction; orders themselves may be longer.
LONGEST: Final = 16384

BIRTH: Final = "birth"
ENTRY: Final = "entry"
PLAIN: Final = "plain"
CALL: Final = "call"

Order = Birth | Entry | Plain | Call


def encode(order: Order) -> bytes:
    """Everything but the descriptors and the filter, which the launcher has."""
    data: dict[str, Any] = order._asdict()
    del data["stdio"], data["filter"]
    if isinstance(order, Birth):
        data |= {"verb": BIRTH, "pod": pod_to_json(order.pod), "spec": spec_to_json(order.spec)}
        data["programs"] = str(order.programs)
    else:
        data["verb"] = ENTRY if isinstance(order, Entry) else CALL if isinstance(order, Call) else PLAIN
    return json.dumps(data).encode()


def decode(data: bytes, stdio: list[int], filter: bytes) -> Order:
    fields: dict[str, Any] = json.loads(data) | {"stdio": stdio, "filter": filter}
    verb = fields.pop("verb")
    if verb == BIRTH:
        pod, spec = pod_from_json(fields["pod"]), spec_from_json(fields["spec"])
        return Birth(**{**fields, "pod": pod, "spec": spec, "programs": Path(fields["programs"])})
    if verb == CALL:
        return Call(**fields)
    return Entry(**fields) if verb == ENTRY else Plain(**fields)
