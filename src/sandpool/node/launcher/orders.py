"""What agent and launcher say to each other.

An order is a message with a number and, as descriptors, a file in memory that holds the order as JSON and three for
standard input, output and error. Answers are JSON: ``{"order", "pid"}`` with a descriptor of the process when it was
executed, or ``{"order", "error", "kind"}``; and, once it has ended, ``{"order", "ended": wait status}``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from sandpool.node.launcher.birth import Birth
from sandpool.node.launcher.entry import Entry
from sandpool.node.launcher.plain import Plain
from sandpool.node.runtimes.record import pod_from_json, pod_to_json, spec_from_json, spec_to_json

# The longest message in either direction; orders themselves may be longer.
LONGEST: Final = 16384

BIRTH: Final = "birth"
ENTRY: Final = "entry"
PLAIN: Final = "plain"


def encode(order: Birth | Entry | Plain) -> bytes:
    """Everything but the descriptors and the filter, which the launcher has."""
    data: dict[str, Any] = order._asdict()
    del data["stdio"], data["filter"]
    if isinstance(order, Birth):
        data |= {"verb": BIRTH, "pod": pod_to_json(order.pod), "spec": spec_to_json(order.spec)}
        data["programs"] = str(order.programs)
    else:
        data["verb"] = ENTRY if isinstance(order, Entry) else PLAIN
    return json.dumps(data).encode()


def decode(data: bytes, stdio: list[int], filter: bytes) -> Birth | Entry | Plain:
    fields: dict[str, Any] = json.loads(data) | {"stdio": stdio, "filter": filter}
    verb = fields.pop("verb")
    if verb == BIRTH:
        pod, spec = pod_from_json(fields["pod"]), spec_from_json(fields["spec"])
        return Birth(**{**fields, "pod": pod, "spec": spec, "programs": Path(fields["programs"])})
    return Entry(**fields) if verb == ENTRY else Plain(**fields)


def in_memory(content: bytes) -> int:
    descriptor = os.memfd_create("order", os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
