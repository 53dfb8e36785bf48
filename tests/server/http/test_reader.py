"""The parser's front against anything: it refuses, or waits for more, and never fails otherwise."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sandpool.kube.errors import ApiError
from sandpool.server.http.cycle import RequestCycle
from sandpool.server.http.limits import HttpLimits
from sandpool.server.http.reader import RequestReader
from sandpool.server.request.messages import ServerRequest

LIMITS = HttpLimits(body=200, head=400)


class Rig:
    """A connection as the reader sees it."""

    limits = LIMITS

    def __init__(self) -> None:
        self.turns: list[RequestCycle] = []

    def open_cycle(self, request: ServerRequest, keep_alive: bool, legacy: bool) -> RequestCycle:
        return RequestCycle(request, "id", 0.0, keep_alive, legacy)

    def identify(self, cycle: RequestCycle, fields: object) -> None:
        pass

    def buffered(self, cycle: RequestCycle, count: int) -> None:
        cycle.buffered += count

    def expected_continue(self) -> None:
        pass

    def received(self, cycle: RequestCycle) -> None:
        self.turns.append(cycle)


def read(pieces: list[bytes]) -> tuple[list[RequestCycle], ApiError | None]:
    rig = Rig()
    reader = RequestReader(rig)
    for piece in pieces:
        try:
            if not reader.feed(piece):
                break
        except ApiError as error:
            return rig.turns, error
    return rig.turns, None


relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

names = st.sampled_from([b"Host", b"Content-Length", b"Transfer-Encoding", b"Expect", b"Connection", b"Upgrade", b"X"])
values = st.sampled_from([b"a", b"5", b"chunked", b"100-continue", b"upgrade", b"99999999999999999999", b"\x00", b""])
messages = st.builds(
    lambda method, target, version, headers, body: (
        b"%b %b HTTP/%b\r\n%b\r\n%b"
        % (method, target, version, b"".join(b"%b: %b\r\n" % header for header in headers), body)
    ),
    st.sampled_from([b"GET", b"POST", b"CONNECT", b"PRI", b"get"]),
    st.sampled_from([b"/", b"*", b"/a?b=c", b"http://x/y", b"/%", b"\xff", b""]),
    st.sampled_from([b"1.1", b"1.0", b"2.0", b"x"]),
    st.lists(st.tuples(names, values), max_size=5),
    st.sampled_from([b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffff\r\n", b"x" * 1000]),
)


@relaxed
@given(st.lists(st.one_of(st.binary(max_size=300), messages), max_size=6))
def test_any_input_is_read_rejected_or_awaited(pieces: list[bytes]) -> None:
    turns, error = read(pieces)
    for cycle in turns:
        assert len(cycle.request.body) <= LIMITS.body
        assert cycle.request.path.startswith("/")
    assert error is None or 400 <= error.code < 500


@relaxed
@given(st.lists(messages, min_size=1, max_size=4), st.data())
@example([b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"], None)
def test_split_reads_give_the_same_requests(sent: list[bytes], data: st.DataObject | None) -> None:
    stream = b"".join(sent)
    if data is None:
        cuts = list(range(len(stream)))
    else:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    whole, whole_error = read([stream])
    split, split_error = read([piece for piece in pieces if piece])
    if split_error is not None and whole_error is None:
        assert split_error.code == 431  # a head is measured while it arrives, and one read is let through
        return
    assert [(t.request.path, t.request.body, t.request.headers) for t in whole] == [
        (t.request.path, t.request.body, t.request.headers) for t in split
    ]
    assert (whole_error is None) == (split_error is None)


@pytest.mark.parametrize("name", [b"impersonate-group", b"Impersonate-Group", b"IMPERSONATE-GROUP"])
def test_repetitions_of_unusual_headers_are_kept_apart(name: bytes) -> None:
    seen: list[object] = []

    class RecordingRig(Rig):
        def identify(self, cycle: RequestCycle, fields: object) -> None:
            seen.append(fields)

    reader = RequestReader(RecordingRig())
    reader.feed(b"GET / HTTP/1.1\r\nHost: a\r\n%b: x\r\n%b: y, z\r\n\r\n" % (name, name))
    reader.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert seen == [[("impersonate-group", "x"), ("impersonate-group", "y, z")], []]
