"""The program that keeps a Python session inside a sandbox. Its source is sent there and run by the sandbox's Python.

It imports nothing but the standard library and runs on Python 3.8 and later. It reads one JSON object per line from
standard input and writes one per line to standard output. Both descriptors are then replaced, so that the code of the
user, and the programs it starts, write to pipes that are read here.
"""

from __future__ import annotations

import ast
import base64
import builtins
import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from typing import Any

MAX_OUTPUT = 1 << 20
MAX_DISPLAYED = 16 << 20
PICTURES = (("png", "_repr_png_"), ("jpeg", "_repr_jpeg_"))
TEXTS = (
    ("svg", "_repr_svg_"),
    ("html", "_repr_html_"),
    ("markdown", "_repr_markdown_"),
    ("latex", "_repr_latex_"),
    ("json", "_repr_json_"),
)
COROUTINE = 0x80  # the flag of code that awaits: inspect.CO_COROUTINE
INTEGERS = range(-(1 << 63), 1 << 64)  # those that the client's JSON has


class Channel:
    """Writes messages to the client, from several threads."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        # Text of the user may have lone surrogates, which the client refuses to read.
        data = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
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
        self.limit = MAX_OUTPUT
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
        room = max(0, self.limit - self.sent)
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


class Display:
    """``display(object, ...)``: shows objects as further results, as notebooks do, up to a limit for each execution."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []
        self.size = 0
        self.dropped = 0

    def __call__(self, *objects: object) -> None:
        for value in objects:
            shown = dict(rich(value), displayed=True)
            size = len(json.dumps(shown))
            if self.size + size > MAX_DISPLAYED:
                self.dropped += 1
                continue
            self.size += size
            self.results.append(shown)

    def take(self) -> tuple[list[dict[str, Any]], int]:
        """The results of an execution, and how many further ones were dropped."""
        results, dropped = self.results, self.dropped
        self.results, self.size, self.dropped = [], 0, 0
        return results, dropped


def figures(formats: list[str]) -> list[dict[str, Any]]:
    """The open figures of matplotlib, as pictures in these formats; closes them."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    import io

    shown: list[dict[str, Any]] = []
    for number in pyplot.get_fignums():
        picture: dict[str, Any] = {"text": f"Figure {number}", "figure": True}
        for name in formats:
            buffer = io.BytesIO()
            pyplot.figure(number).savefig(buffer, format=name, bbox_inches="tight")
            content = buffer.getvalue()
            picture[name] = content.decode() if name == "svg" else base64.b64encode(content).decode()
        shown.append(picture)
    pyplot.close("all")
    return shown


class Interpreter:
    """Runs the code of a session, which keeps its names.

    Code may await at its top level. One event loop serves all code of the session, so that what belongs to the loop can
    be used again; other tasks go on while code awaits."""

    def __init__(self) -> None:
        self.variables: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
        self.loop: Any = None

    def execute(self, code: str, formats: list[str]) -> tuple[Any, list[dict[str, Any]]]:
        """Run code. Returns the results and the value of the last expression, if there is one."""
        tree = ast.parse(code, "<code>")
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = ast.Expression(tree.body[-1].value)
            del tree.body[-1]
        self.run(tree, "exec")
        value = self.run(last, "eval") if last is not None else None
        results = [rich(value)] if value is not None else []
        return value, results + figures(formats)

    def run(self, tree: Any, mode: str) -> Any:
        compiled = compile(tree, "<code>", mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        value = eval(compiled, self.variables)
        return self.wait(value) if compiled.co_flags & COROUTINE else value

    def wait(self, awaiting: Any) -> Any:
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        task = self.loop.create_task(awaiting)
        try:
            return self.loop.run_until_complete(task)
        finally:
            if not task.done():  # it was interrupted, and must not go on with the next code
                task.cancel()
                self.loop.run_until_complete(asyncio.wait([task]))
            if not task.cancelled():
                task.exception()  # or the loop would complain that it was not looked at


def as_json(value: object) -> Any:
    """The value as the client reads it. Raises ``TypeError`` and ``ValueError`` if it cannot be passed."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    text.encode()
    return json.loads(text, parse_int=integer)


def integer(digits: str) -> int:
    number = int(digits)
    if number not in INTEGERS:
        raise ValueError("an integer of the value has more than 64 bits and cannot be passed as JSON")
    return number


def described(error: BaseException, code: str) -> dict[str, str]:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != "<string>"]  # the driver itself
    first = next((index for index, frame in enumerate(own) if frame.filename == "<code>"), 0)  # after the event loop
    lines = code.splitlines()
    text = ["Traceback (most recent call last):\n"]
    for frame in own[first:]:
        text.append(f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}\n')
        if frame.filename == "<code>" and 0 < (frame.lineno or 0) <= len(lines):
            text.append(f"    {lines[(frame.lineno or 1) - 1].strip()}\n")
        elif frame.line:
            text.append(f"    {frame.line}\n")
    text += traceback.format_exception_only(type(error), error)
    try:
        value = str(error)
    except BaseException:  # noqa: BLE001
        value = "<its text cannot be read>"
    return {"name": type(error).__name__, "value": value, "traceback": "".join(text)}


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
    interpreter = Interpreter()
    display = Display()
    builtins.display = display  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel.send({"pid": os.getpid(), "version": sys.version.split()[0]})
    for line in iter(requests.readline, b""):
        request = json.loads(line)
        answer: dict[str, Any] = {"done": request["id"], "results": [], "error": None}
        for capture in captures:
            capture.limit = request.get("max_output", MAX_OUTPUT)
        try:
            interpreter.variables.update(request.get("variables", {}))
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                value, answer["results"] = interpreter.execute(request["code"], request.get("figures", ["png"]))
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            if request.get("returns"):
                answer["value"] = as_json(value)
        except BaseException as error:  # noqa: BLE001
            # Also what usually ends a program, such as SystemExit: the session and its state outlive their code.
            answer["error"] = described(error, request["code"])
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the code may have closed or replaced it
                stream.flush()
        displayed, not_shown = display.take()
        answer["results"] = displayed + answer["results"]
        answer["dropped"] = {capture.stream: capture.drain() for capture in captures} | {"results": not_shown}
        channel.send(answer)


if __name__ == "__main__":
    main()
