"""User namespaces for ID-mapped mounts: who owns the files of an image, as a sandbox sees them."""

from __future__ import annotations

import os
from typing import Final

from sandpool.node.launcher import syscalls

_EVERY_ID: Final = (1 << 32) - 2


def user_namespace(uid: int, host_uid: int, gid: int, host_gid: int) -> int:
    """Return a user namespace that exists for its mappings only: files of ``uid`` appear as files of ``host_uid``, all
    others as they are."""
    ready, held = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(held[1])
            syscalls.unshare(syscalls.CLONE_NEWUSER)
            os.write(ready[1], b"x")
            os.read(held[0], 1)
        finally:
            os._exit(0)
    try:
        os.close(ready[1])
        os.close(held[0])
        os.read(ready[0], 1)
        for file, inside, outside in (("uid_map", uid, host_uid), ("gid_map", gid, host_gid)):
            with open(f"/proc/{child}/{file}", "w") as mapping:
                mapping.write(id_map(inside, outside))
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready[0])
        os.close(held[1])
        os.waitpid(child, 0)


def id_map(inside: int, outside: int) -> str:
    """Map ``inside`` to ``outside`` and all other IDs to themselves. Files of ``outside`` appear as unmapped."""
    lines = [f"{inside} {outside} 1"]
    start = 0
    for taken in (*sorted({inside, outside}), _EVERY_ID):
        if taken > start:
            lines.append(f"{start} {start} {taken - start}")
        start = taken + 1
    return "\n".join(lines) + "\n"
