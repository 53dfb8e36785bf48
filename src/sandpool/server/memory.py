"""How a process that is all server should collect its garbage.

Python's collector walks every container it knows of when a full collection comes, and full collections come often while
many objects are made and few die young. A server keeps its schemas and tables for good and makes a few hundred
short-lived dicts per request, nearly all of which are freed by reference counting at once. So what is there when it
starts is taken out of the collector's sight, and it is called rarely.
"""

from __future__ import annotations

import gc

_THRESHOLDS = (50_000, 20, 100)


def settle() -> None:
    """To be called once, by whoever owns the process, when it is about to serve."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
