"""The messages between ``sandpool run`` and the home that serves it.

A frame is a byte for its kind, four bytes for the length of its payload, and the payload. Both ends are of one version:
the home declines a request of another one, and the client then takes the ordinary way through the API. Imports nothing,
because the client has to start fast.
"""

from __future__ import annotations

# From the client.
REQUEST = 1  # see ``encode_request``
INPUT = 2  # a piece of standard input, empty at its end; sent only as far as WANT allows
SIZE = 3  # of the terminal: columns and rows, two bytes each
CANCEL = 4

# From the home.
DECLINED = 16  # nothing has happened: take the ordinary way
MESSAGE = 17  # text for standard error
STARTED = 18  # the command runs; the payload has INTERACTIVE and TERMINAL
WANT = 19  # the payload's length is how many more pieces of input may be sent
OUTPUT = 20
ERROR_OUTPUT = 21
ENDED = 22  # the command has ended: the terminal is the user's again
EXIT = 23  # one byte: the exit code. The claim is released

#: Bits of STARTED and of the consoles in requests.
INTERACTIVE = 1
TERMINAL = 2
MESSAGES_ON_TERMINAL = 4  # in requests: standard error is a terminal

HEAD = 5
#: The longest frame that the home accepts: the kernel limits the arguments of a program to less.
LONGEST = 8 << 20


def frame(kind: int, payload: bytes = b"") -> bytes:
    """A frame as bytes."""
    return bytes((kind,)) + len(payload).to_bytes(4, "big") + payload


def head(data: bytes | bytearray) -> tuple[int, int]:
    """The kind of a frame and the length of its payload."""
    return data[0], int.from_bytes(data[1:HEAD], "big")


def encode_request(version: str, console: int, arguments: list[bytes], variables: dict[bytes, bytes]) -> bytes:
    """The payload of a request: a console is INTERACTIVE if input is piped in, TERMINAL and MESSAGES_ON_TERMINAL.
    ``variables`` are those that the arguments name."""
    pairs = [part for pair in variables.items() for part in pair]
    return b"\0".join([version.encode(), b"%d" % console, b"%d" % len(arguments), *arguments, *pairs])


def decode_request(payload: bytes) -> tuple[str, int, list[bytes], dict[bytes, bytes]]:
    """The parts of a request. Raises ``ValueError``."""
    version, console, count, *rest = payload.split(b"\0")
    size = int(count)
    if not 0 <= size <= len(rest) or (len(rest) - size) % 2:
        raise ValueError("the request is incomplete")
    pairs = rest[size:]
    variables = dict(zip(pairs[::2], pairs[1::2], strict=True))
    if b"%d\0%d" % (int(console), size) != console + b"\0" + count or len(variables) * 2 != len(pairs):
        raise ValueError("the request has another form than its client gives it")
    return version.decode(), int(console), rest[:size], variables
