"""The program that watches a tree inside a sandbox. Its source is sent there and run by the sandbox's Python.

It imports nothing but the standard library and runs on Python 3.8 and later. The kernel reports changes (inotify, one
watch for each directory), so that an idle tree costs nothing. It writes one JSON object per line to standard output,
with paths relative to the root of the tree, in base64 because they may be any bytes.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import select
import struct
import sys

MODIFY, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
OVERFLOW, IGNORED, IS_DIRECTORY = 0x4000, 0x8000, 0x40000000
ONLY_DIRECTORIES, DO_NOT_FOLLOW, NO_UNLINKED = 0x01000000, 0x02000000, 0x04000000
MASK = MODIFY | MOVED_FROM | MOVED_TO | CREATE | DELETE | ONLY_DIRECTORIES | NO_UNLINKED
EVENT = struct.Struct("iIII")
#: Milliseconds in which the second half of a move arrives.
PAIRING = 20
#: Reads after which events are sent even if more are there.
ROUNDS = 64


class Tree:
    """The watches of a tree, and what is reported of it."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor = self.libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.paths: dict[int, bytes] = {}  # watch -> directory, relative to the root
        self.moved: dict[int, tuple[bytes, bool]] = {}  # cookie -> where it was, and whether it is a directory
        self.unsent: list[dict[str, object]] = []
        self.latest: dict[bytes, str] = {}  # path -> kind of the last event that is not sent yet
        self.number = -1  # the watch of the root

    def run(self) -> None:
        self.add(b"", is_reported=True)
        self.report("ready", b"")
        self.flush()
        while self.number in self.paths:
            if not self.wait(PAIRING / 1000 if self.moved else None):
                for path, directory in self.moved.values():
                    self.forget(path, directory)
                    self.report("removed", path, directory)
                self.moved.clear()
            for _ in range(ROUNDS):
                if not self.wait(0):
                    break
                for event in self.read():
                    self.handle(*event)
            self.flush()

    def wait(self, seconds: float | None) -> bool:
        return bool(select.select([self.descriptor], [], [], seconds)[0])

    def read(self) -> list[tuple[int, int, int, bytes]]:
        data, position, events = os.read(self.descriptor, 1 << 16), 0, []
        while position < len(data):
            number, mask, cookie, length = EVENT.unpack_from(data, position)
            position += EVENT.size
            events.append((number, mask, cookie, data[position : position + length].rstrip(b"\0")))
            position += length
        return events

    def handle(self, number: int, mask: int, cookie: int, name: bytes) -> None:
        if mask & OVERFLOW:
            self.report("overflow", b"")
            self.add(b"", is_reported=True)
            return
        if mask & IGNORED:
            self.paths.pop(number, None)
            return
        if number not in self.paths:
            return
        path = os.path.join(self.paths[number], name)
        directory = bool(mask & IS_DIRECTORY)
        if mask & MOVED_FROM:
            self.moved[cookie] = (path, directory)
        elif mask & MOVED_TO and cookie in self.moved:
            source, _ = self.moved.pop(cookie)
            if directory:
                self.rename(source, path)
            self.report("moved", path, directory, source)
        elif mask & (MOVED_TO | CREATE):
            self.report("created", path, directory)
            if directory:
                self.add(path, is_reported=False)
        elif mask & DELETE:
            self.report("removed", path, directory)
        elif mask & MODIFY:
            self.report("modified", path)

    def add(self, path: bytes, *, is_reported: bool) -> None:
        """Watch a directory and all below. Report what is in it, which may be older than the watch, unless it is
        reported already."""
        flags = MASK | (DO_NOT_FOLLOW if path else 0)
        number = self.libc.inotify_add_watch(self.descriptor, os.path.join(self.root, path) or b".", flags)
        if number < 0:
            error = ctypes.get_errno()
            if not path or error == 28:  # ENOSPC: no more watches
                reason = "there are too many directories to watch" if error == 28 else os.strerror(error)
                raise OSError(error, reason)
            return  # it is gone again
        self.paths[number] = path
        if not path:
            self.number = number
        try:
            found = list(os.scandir(os.path.join(self.root, path) or b"."))
        except OSError:
            return
        for entry in found:
            directory = entry.is_dir(follow_symlinks=False)
            below = os.path.join(path, entry.name)
            if not is_reported:
                self.report("created", below, directory)
            if directory:
                self.add(below, is_reported=is_reported)

    def rename(self, source: bytes, path: bytes) -> None:
        for number, known in self.paths.items():
            if known == source or known.startswith(source + b"/"):
                self.paths[number] = path + known[len(source) :]

    def forget(self, source: bytes, directory: bool) -> None:
        """Stop watching what was moved out of the tree."""
        if directory:
            for number, known in list(self.paths.items()):
                if known == source or known.startswith(source + b"/"):
                    self.libc.inotify_rm_watch(self.descriptor, number)
                    del self.paths[number]

    def report(self, kind: str, path: bytes, directory: bool = False, source: bytes | None = None) -> None:
        event: dict[str, object] = {"kind": kind, "path": encoded(path), "directory": directory}
        if source is not None:
            event["source"] = encoded(source)
        # Programs write in small pieces, and what is in a new directory is found twice.
        repeated = {"modified": ("modified",), "created": ("created", "modified")}.get(kind, ())
        if self.latest.get(path) not in repeated:
            self.unsent.append(event)
            self.latest[path] = kind

    def flush(self) -> None:
        data = b"".join([json.dumps(event).encode() + b"\n" for event in self.unsent])
        self.unsent, self.latest = [], {}
        while data:
            data = data[os.write(1, data) :]


def encoded(path: bytes) -> str:
    return base64.b64encode(path).decode()


def main() -> None:
    try:
        Tree(os.fsencode(sys.argv[1])).run()
    except OSError as error:
        sys.exit(error.strerror)


if __name__ == "__main__":
    main()
