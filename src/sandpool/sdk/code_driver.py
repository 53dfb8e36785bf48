"""The program that keeps a Python session inside a sandbox. Its source is sent there and run by the sandbox's Python.

It imports nothing but the standard library and runs on Python 3.8 and later. It reads one JSON object per line from
standard input and writes one per line to standard output. Both descriptors are then replaced, so that the code of the
user, and the programs it starts, write to pipes that are read here.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from typing import Any

MAX_OUTPUT = 1 << 20
PICTURES = (("png", "_repr_png_"), ("jpeg", "_repr_jpeg_"))
TEXTS = (
    ("svg", "_repr_svg_"),
    ("html", "_repr_html_"),
    ("markdown", "_repr_markdown_"),
    ("latex", "_repr_latex_"),
    ("json", "_repr_json_"),
)


class Channel:
    """Writes messages to the client, from several threads."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        with self.lock:
            while data:
                data = data[os.write(self.descriptor, data) :]


class Capture(threading.Thread):
    """Reads what is written to a descriptor and sends it on, up to a limit for each execution."""

    def __init__(self, descriptor: int, name: str, channel: Channel) -> None:
        super().__init__(daemon=True)
        reader, writer = os.pipe()
        os.dup2(writer, descriptor)
        os.close(writer)
        self.reader = reader
        self.target = descriptor
        self.stream = name
        self.channel = channel
        self.sent = 0
        self.dropped = 0
        self.mark = b""
        self.drained = threading.Event()

    def run(self) -> None:
        rest = b""
        while True:
            data = rest + os.read(self.reader, 1 << 16)
            rest = b""
            mark = self.mark
            if mark and mark in data:
                data, _, rest = data.partition(mark)
                self.forward(data)
                self.mark = b""
                self.drained.set()
                continue
            # The beginning of the mark may be at the end of what was read.
            keep = next((n for n in range(min(len(mark) - 1, len(data)), 0, -1) if data.endswith(mark[:n])), 0)
            if keep:
                data, rest = data[:-keep], data[-keep:]
            self.forward(data)

    def forward(self, data: bytes) -> None:
        room = max(0, MAX_OUTPUT - self.sent)
        self.dropped += max(0, len(data) - room)
        data = data[:room]
        self.sent += len(data)
        if data:
            self.channel.send({"stream": self.stream, "data": base64.b64encode(data).decode()})

    def drain(self) -> int:
        """Wait until all that was written so far has been sent. Returns the number of bytes that were dropped."""
        self.drained.clear()
        mark = b"\x00" + os.urandom(16)
        self.mark = mark
        os.write(self.target, mark)
        self.drained.wait()
        dropped, self.sent, self.dropped = self.dropped, 0, 0
        return dropped


def rich(value: object) -> dict[str, Any]:
    """The representations that an object offers, as notebooks use them."""
    shown: dict[str, Any] = {"text": repr(value)[:MAX_OUTPUT]}
    for name, method in PICTURES + TEXTS:
        offered = getattr(type(value), method, None)
        if offered is None:
            continue
        try:
            content = offered(value)
            if isinstance(content, tuple):
                content = content[0]  # the second one is metadata
            if isinstance(content, bytes):
                content = base64.b64encode(content).decode()
            if content is not None:
                json.dumps(content)
                shown[name] = content
        except Exception:  # noqa: BLE001
            continue  # a representation that fails is none
    return shown


def figures() -> list[dict[str, Any]]:
    """The open figures of matplotlib, as pictures; closes them."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    import io

    shown: list[dict[str, Any]] = []
    for number in pyplot.get_fignums():
        buffer = io.BytesIO()
        pyplot.figure(number).savefig(buffer, format="png", bbox_inches="tight")
        shown.append({"text": f"Figure {number}", "figure": True, "png": base64.b64encode(buffer.getvalue()).decode()})
    pyplot.close("all")
    return shown


def execute(code: str, variables: dict[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
    """Run code. Returns the results and the value of the last expression, if there is one."""
    tree = ast.parse(code, "<code>")
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body[-1].value)
        del tree.body[-1]
    exec(compile(tree, "<code>", "exec"), variables)
    value = eval(compile(last, "<code>", "eval"), variables) if last is not None else None
    results = [rich(value)] if value is not None else []
    return value, results + figures()


def described(error: BaseException, code: str) -> dict[str, str]:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != "<string>"]  # the driver itself
    lines = code.splitlines()
    text = ["Traceback (most recent call last):\n"]
    for frame in own:
        text.append(f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}\n')
        if frame.filename == "<code>" and 0 < (frame.lineno or 0) <= len(lines):
            text.append(f"    {lines[(frame.lineno or 1) - 1].strip()}\n")
        elif frame.line:
            text.append(f"    {frame.line}\n")
    text += traceback.format_exception_only(type(error), error)
    return {"name": type(error).__name__, "value": str(error), "traceback": "".join(text)}


def main() -> None:
    os.environ.setdefault("MPLBACKEND", "Agg")
    channel = Channel(os.dup(1))
    requests = os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    captures = [Capture(1, "stdout", channel), Capture(2, "stderr", channel)]
    for capture in captures:
        capture.start()
    # Streams of the same descriptors, which replace what cannot be encoded.
    sys.stdout = open(1, "w", 1, "utf-8", "replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, "utf-8", "replace", closefd=False)  # noqa: SIM115
    variables: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel.send({"pid": os.getpid(), "version": sys.version.split()[0]})
    for line in iter(requests.readline, b""):
        request = json.loads(line)
        answer: dict[str, Any] = {"done": request["id"], "results": [], "error": None}
        try:
            variables.update(request.get("variables", {}))
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                value, answer["results"] = execute(request["code"], variables)
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            if request.get("returns"):
                answer["value"] = json.loads(json.dumps(value, allow_nan=False))
        except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001
            answer["error"] = described(error, request["code"])
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # the code may have closed it
                stream.flush()
        answer["dropped"] = {capture.stream: capture.drain() for capture in captures}
        channel.send(answer)


if __name__ == "__main__":
    main()
