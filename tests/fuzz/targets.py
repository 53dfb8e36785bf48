"""Fuzz targets: the decoders of bytes that clients and sandboxes send, each with an oracle.

A target takes an input and raises if the decoder violates a rule: an exception other than its declared ones, output
without bound, a different result for another split into reads, or a second message hidden in the first.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from sandpool.api.kinds import POD
from sandpool.api.schema.core import OBJECT_META, definition
from sandpool.api.schema.shape import Shape, from_openapi
from sandpool.cli import run_frames
from sandpool.e2b import process_api, rpc
from sandpool.e2b.access import READ, SignedRequest
from sandpool.e2b.address import address_of
from sandpool.e2b.documents import ListQuery
from sandpool.e2b.errors import Refusal
from sandpool.e2b.rpc_http import Call, basic_user
from sandpool.engine.metrics.registry import MetricsRegistry
from sandpool.kube import spdy
from sandpool.kube.errors import ApiError, BadRequest, PatchError, TooLarge
from sandpool.kube.jsonpatch import json_patch
from sandpool.kube.patches import merge_patch
from sandpool.kube.spdy_session import SpdySession
from sandpool.kube.strategic import strategic_merge_patch
from sandpool.node.network.cluster_dns import OutsideClusterDomain
from sandpool.node.network.dns import DnsServer
from sandpool.router import http1 as router_http1
from sandpool.router.broker import DIAL, BrokerRequest, MalformedRequest
from sandpool.router.destination import RequestRejected
from sandpool.router.headers import RequestHeaders
from sandpool.router.metrics import RouterMetrics
from sandpool.router.signed_urls import UrlGrant, check_token, label_of, make_token, tokens_of, without_token
from sandpool.router.tokens import TokenScope, TokenSigner, token_of
from sandpool.sandboxd import http1 as sandboxd_http1
from sandpool.sandboxd import process_messages
from sandpool.sandboxd.binding import Binding
from sandpool.sandboxd.encoding import to_json
from sandpool.server.apply import apply
from sandpool.server.http.target import parse_query
from sandpool.server.request import body
from sandpool.server.request.options import list_options
from sandpool.server.streams.options import StdStreams
from sandpool.server.streams.port_forward import forward
from sandpool.server.streams.remote_command import over_websocket
from sandpool.server.streams.websocket import WebSocket
from tests.fuzz.surfaces import MCP_HEADERS, MCP_INITIALIZE, PORT, FuzzedResponse, surfaces
from tests.server.apply.conftest import SPEC, STATUS
from tests.server.http.test_reader import read as read_api_requests
from tests.server.streams.test_hostile_streams import Dialler, Script, lived, work


@dataclass(frozen=True, slots=True)
class Target:
    """``check`` gets an input and randomness for choices that are not part of it, such as the split into reads.
    ``tokens`` are pieces of the grammar. ``weight`` is its share of the time."""

    name: str
    check: Callable[[bytes, random.Random], None]
    tokens: tuple[bytes, ...]
    weight: int = 1


def reads(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """Split an input as a network might."""
    start = 0
    while start < len(data):
        size = rng.choice((1, 1, 2, 3, 7, 50, 1000))
        yield data[start : start + size]
        start += size


# --- HTTP ------------------------------------------------------------------------------------------------------------

_HTTP = (
    *(b"\r\n", b"\r\n\r\n", b"\n", b"\r", b" HTTP/1.1", b" HTTP/1.0", b"GET / HTTP/1.1\r\n", b"POST /a HTTP/1.1\r\n"),
    *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 101 X\r\n", b"HTTP/1.1 204 No\r\n\r\n"),
    *(b"HTTP/1.0 200 OK\r\n", b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"content-length:+5\r\n"),
    *(b"Content-Length: 5, 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n"),
    *(b"Connection: close\r\n", b"Connection: Upgrade\r\nUpgrade: x\r\n", b"Connection: content-length\r\n"),
    *(
        b"5\r\nabcde\r\n",
        b"0\r\n\r\n",
        b"5;a=b\r\n",
        b"0\r\nA: b\r\n\r\n",
        b"ffffffffffffffff\r\n",
        b"abcde",
        b" folded",
    ),
    *(b"Host: x\r\n", b"X-Sandbox-ID: a\r\n", b"Expect: 100-continue\r\n", b"\x00", b"\t", b"X" * 200),
)

Response = tuple[int | None, bytes, bool]


def _response(pieces: Iterable[bytes], *, head_only: bool) -> Response | None:
    """Return status, body and whether the response is complete; None if it is malformed."""
    parser = router_http1.ResponseParser()
    parser.begin(head_only=head_only, upgrade_requested=False)
    received = bytearray()
    try:
        for piece in pieces:
            received += parser.feed(piece)
    except router_http1.MalformedMessage:
        return None
    if parser.is_complete:
        try:
            parser.feed(b"HTTP/1.1 200 OK\r\n\r\n")
        except router_http1.MalformedMessage:
            pass
        else:
            raise AssertionError("a second response was accepted")
    return parser.head.status if parser.head else None, bytes(received), parser.is_complete


def check_router_response(data: bytes, rng: random.Random) -> None:
    for head_only in (False, True):
        whole = _response([data] if data else [], head_only=head_only)
        assert _response(reads(data, rng), head_only=head_only) == whole
        if whole is not None:
            assert len(whole[1]) <= len(data)
            assert not (head_only and whole[1]), "a response to HEAD has a body"


Message = tuple[bytes, bytes, bytes]  # method, target, body


def _router_requests(pieces: Iterable[bytes]) -> list[Message] | None:
    """Parse requests as ``router.downstream`` does, except that no empty line is skipped, and check each head that
    would be forwarded. Return None if a byte is malformed."""
    heads = router_http1.HeadBuffer()
    reader: router_http1.BodyReader | None = None
    found: list[Message] = []
    try:
        for data in pieces:
            start = 0
            while start < len(data):
                if reader is not None:
                    content, start = reader.feed(data, start)
                    method, target, before = found[-1]
                    found[-1] = method, target, before + content
                    if reader.is_complete:
                        reader = None
                    continue
                taken = heads.take(data, start)
                if taken is None:
                    break
                heads.reset()
                head, start = taken
                line, _, block = head.partition(b"\r\n")
                method, target, is_http_1_0 = router_http1.parse_request_line(line)
                headers = RequestHeaders(router_http1.parse_fields(block), is_http_1_0=is_http_1_0)
                _check_forwarded(method, target, headers)
                found.append((method, target, b""))
                if headers.has_body:
                    reader = router_http1.BodyReader(headers.framing)
                elif headers.upgrade:
                    return found
    except router_http1.MalformedMessage:
        return None
    return found


def _check_forwarded(method: bytes, target: bytes, headers: RequestHeaders) -> None:
    """What the router forwards is one head, and sandboxd reads the same method, target and length from it."""
    forwarded = headers.head(method, target, host="sandbox", client="192.0.2.1")
    assert forwarded.endswith(b"\r\n\r\n")
    assert forwarded.count(b"\r\n\r\n") == 1
    assert forwarded.count(b"\n") == forwarded.count(b"\r") == forwarded.count(b"\r\n")
    if len(forwarded) > sandboxd_http1.MAX_HEAD_BYTES or forwarded.count(b"\n") > sandboxd_http1.MAX_HEADERS:
        return
    taken = sandboxd_http1.HeadBuffer().take(forwarded, 0)
    assert taken is not None
    parsed = sandboxd_http1.RequestHead(taken[0])
    assert (parsed.method.encode(), parsed.target.encode("latin-1")) == (method, target)
    assert parsed.is_chunked == headers.framing.is_chunked
    assert (parsed.length or 0) == (headers.framing.length or 0)


def check_router_request(data: bytes, rng: random.Random) -> None:
    whole = _router_requests([data])
    assert _router_requests(reads(data, rng)) == whole
    assert whole is None or sum(len(content) for _, _, content in whole) <= len(data)


def _sandboxd_requests(pieces: Iterable[bytes]) -> tuple[list[Message], bool]:
    """Return the requests and whether all bytes were well-formed."""
    heads = sandboxd_http1.HeadBuffer()
    reader: sandboxd_http1.BodyReader | None = None
    found: list[Message] = []
    try:
        for data in pieces:
            start = 0
            while start < len(data):
                if reader is not None:
                    content, start = reader.feed(data, start)
                    found[-1] = (*found[-1][:2], found[-1][2] + content)
                    if reader.is_complete:
                        reader = None
                    continue
                taken = heads.take(data, start)
                if taken is None:
                    break
                raw, start = taken
                head = sandboxd_http1.RequestHead(raw)
                found.append((head.method.encode(), head.target.encode("latin-1"), b""))
                if head.length != 0:
                    reader = sandboxd_http1.BodyReader(head)
    except sandboxd_http1.MalformedRequest:
        return found, False
    return found, True


def check_sandboxd_request(data: bytes, rng: random.Random) -> None:
    whole = _sandboxd_requests([data])
    assert _sandboxd_requests(reads(data, rng)) == whole
    assert sum(len(content) for _, _, content in whole[0]) <= len(data)


def check_api_request(data: bytes, rng: random.Random) -> None:
    whole, problem = read_api_requests([data])
    split, split_problem = read_api_requests(list(reads(data, rng)))
    if split_problem is not None and problem is None:
        assert split_problem.code == 431, "a head is measured while it arrives, and one read is let through"
        return
    seen = [
        [(each.request.path, each.request.body, each.request.headers) for each in cycles] for cycles in (whole, split)
    ]
    assert seen[0] == seen[1]
    assert (problem is None) == (split_problem is None)
    assert sum(len(each.request.body) for each in whole) <= len(data)


def check_selectors(data: bytes, rng: random.Random) -> None:
    """The query of a list: its parameters, and the selectors in them."""
    query = parse_query(data.decode("latin-1"))
    try:
        options = list_options({"labelSelector": data.decode("latin-1"), **query})
    except ApiError:
        return
    for labels in ({}, {"a": "b"}, {"a": "7", "app.example/name": ""}):
        if options.labels is not None:
            assert options.labels.matches(labels) == all(each.matches(labels) for each in options.labels.requirements)


# --- bodies of API requests ------------------------------------------------------------------------------------------


def check_json(data: bytes, rng: random.Random) -> None:
    try:
        decoded = body.decode(data, "application/json", POD)
    except BadRequest:
        return
    assert isinstance(decoded.value, dict)
    assert body.decode_json(orjson.dumps(decoded.value)).value == decoded.value


def check_yaml(data: bytes, rng: random.Random) -> None:
    try:
        decoded = body.decode_yaml(data)
    except BadRequest:
        return
    assert len(orjson.dumps(decoded.value)) <= 8 * body.MAX_BODY
    assert len(decoded.duplicates) <= 100


def check_protobuf(data: bytes, rng: random.Random) -> None:
    try:
        decoded = body.decode(data, body.PROTOBUF, POD)
    except BadRequest:
        return
    assert len(orjson.dumps(decoded.value)) <= 64 * len(data) + 1024


def check_process_messages(data: bytes, rng: random.Random) -> None:
    for decode in (
        process_messages.execute_request,
        process_messages.start_request,
        process_messages.write_stdin_request,
        process_messages.signal_request,
        process_messages.resize_request,
    ):
        try:
            decode(data)
        except process_messages.Malformed:
            continue


# --- patches ---------------------------------------------------------------------------------------------------------

_TEXT = Shape(type="string")
_ITEM = Shape(type="object", name="Item", properties={"name": _TEXT, "value": _TEXT})
_SHAPE = Shape(
    type="object",
    name="Object",
    properties={
        "name": _TEXT,
        "a": Shape(type="object", name="Inner", properties={"name": _TEXT}),
        "items": Shape(type="array", items=_ITEM, patch_strategy="merge", patch_merge_key="name"),
        "finalizers": Shape(type="array", items=_TEXT, patch_strategy="merge"),
    },
)


def _check_patch(apply: Callable[[Any, Any], Any], target: Any, patch: Any) -> Any:
    """Apply a patch. Neither argument may change, and the result must be bounded JSON."""
    before = deepcopy((target, patch))
    try:
        result = apply(target, patch)
    except (PatchError, TooLarge):
        result = None
    assert (target, patch) == before, "a patch changed its arguments"
    encoded = orjson.dumps(result)
    assert len(encoded) <= (4 << 20)
    return result


def check_patches(data: bytes, rng: random.Random) -> None:
    """The input is a JSON list of a target and a patch."""
    try:
        target, patch = orjson.loads(data)
    except (ValueError, TypeError):
        return
    _check_patch(json_patch, target, patch)
    merged = _check_patch(merge_patch, target, patch)
    if merged is not None:
        assert merge_patch(merged, patch) == merged, "a merge patch is idempotent"
    if isinstance(target, dict):
        _check_patch(lambda target, patch: strategic_merge_patch(target, patch, _SHAPE), target, patch)


_APPLIED = from_openapi({"type": "object", "properties": {"spec": SPEC, "status": STATUS}})
_APPLIED.properties |= {"apiVersion": _TEXT, "kind": _TEXT, "metadata": definition(OBJECT_META)}
_IDENTITY = {"apiVersion": "example.com/v1", "kind": "Example"}


def _without_empty(value: Any) -> Any:
    """A value without the empty members of its objects: removing a field may leave null where applying leaves {}."""
    if isinstance(value, dict):
        members = {key: _without_empty(member) for key, member in value.items() if key != "managedFields"}
        return {key: member for key, member in members.items() if member not in (None, {}, [])}
    return [_without_empty(item) for item in value] if isinstance(value, list) else value


def check_apply(data: bytes, rng: random.Random) -> None:
    """The input is a JSON list of configurations that two managers apply in turns, with or without force."""
    try:
        configurations = orjson.loads(data)
    except ValueError:
        return
    if not isinstance(configurations, list):
        return
    live: dict[str, Any] | None = None
    for number, fields in enumerate(configurations[:8]):
        if not isinstance(fields, dict) or not isinstance(fields.get("metadata") or {}, dict):
            continue  # refused before it is applied
        applied = {**fields, **_IDENTITY, "metadata": {**(fields.get("metadata") or {}), "name": "a"}}

        apply_it = partial(
            apply,
            shape=_APPLIED,
            manager=f"manager-{number % 2}",
            force=rng.random() < 0.5,
            subresource="",
            now="2026-01-01T00:00:00Z",
            reset=None,
        )
        before = deepcopy((live, applied))
        try:
            result: Any = apply_it(live, applied)
        except ApiError:
            result = live
        else:
            again = apply_it(result, applied)
            assert _without_empty(again) == _without_empty(result), "applying the same again changes the object"
        assert (live, applied) == before, "an apply changed its arguments"
        assert len(orjson.dumps(result)) <= 16 * len(data) + 4096, "an apply multiplied its input"
        live = result


# --- streams ---------------------------------------------------------------------------------------------------------


def _frames(pieces: Iterable[bytes]) -> tuple[list[spdy.Control | spdy.Data], bool]:
    decoder = spdy.Decoder()
    found: list[spdy.Control | spdy.Data] = []
    try:
        for piece in pieces:
            found.extend(frame for frame in decoder.feed(piece))
    except spdy.SpdyError:
        return found, False
    return found, True


def check_spdy(data: bytes, rng: random.Random) -> None:
    whole, is_valid = _frames([data])
    split, is_split_valid = _frames(reads(data, rng))
    assert is_split_valid == is_valid
    if is_valid:
        assert split == whole
        assert sum(len(frame.data) for frame in whole if isinstance(frame, spdy.Data)) <= len(data)


def check_port_forward(data: bytes, rng: random.Random) -> None:
    dial = Dialler()
    lived(forward(SpdySession(Script(data, rng.choice((1, 16, 4096)))), dial))
    dial.check()


def check_router_broker(data: bytes, rng: random.Random) -> None:
    """A request of the router process is malformed, or exactly the bytes that it encodes to."""
    try:
        request = BrokerRequest.decode(data)
    except MalformedRequest:
        return
    assert request.encode() == data
    assert (request.operation == DIAL) == (request.port > 0 and bool(request.namespace and request.pod and request.uid))


def check_router_metrics(data: bytes, rng: random.Random) -> None:
    """Metrics of the router process are refused, or shown as they were reported."""
    shown, again = RouterMetrics(MetricsRegistry()), RouterMetrics(MetricsRegistry())
    try:
        shown.load(data)
    except ValueError:
        return
    again.load(shown.dump())
    assert again.dump() == shown.dump()


def check_websocket(data: bytes, rng: random.Random) -> None:
    client = Script(data, rng.choice((1, 16, 4096)))
    streams = StdStreams(True, stdout=True, stderr=True, terminal=rng.random() < 0.5)
    lived(over_websocket(WebSocket(client), work, streams))
    assert len(client.sent) <= len(data) + 4096


# --- processes of a home and of a sandbox ----------------------------------------------------------------------------


def check_run_request(data: bytes, rng: random.Random) -> None:
    """A request of ``sandpool run`` to its home is refused, or exactly the bytes that it encodes to."""
    try:
        version, console, arguments, variables = run_frames.decode_request(data)
    except ValueError:
        return
    assert run_frames.encode_request(version, console, arguments, variables) == data


_BOUND = "uid-of-the-claim"


def check_binding(data: bytes, rng: random.Random) -> None:
    """Lines to a sandbox that is bound already change nothing and reveal nothing without the key; lines to a new one
    set variables that an environment can have, or nothing."""
    secret, environ = "canary", {"HOME": "/"}
    bound = Binding(environ)
    bound.answer(orjson.dumps({"bind": {"claim": _BOUND, "values": {"A": secret}, "key": "the-key"}}))
    before, fresh = dict(environ), Binding({})
    for line in data.split(b"\n"):
        if b"the-key" not in line:
            assert secret not in to_json(bound.answer(line))
        answer = fresh.answer(line)
        assert orjson.loads(to_json(answer)).keys() in ({"error", "message"}, {"claim", "first"}, {"claim", "values"})
    assert environ == before
    for name, value in fresh.environ.items():
        assert name and not {"=", "\0"} & set(name) and "\0" not in value
        os.fsencode(name + value)


_SIGNER = TokenSigner(b"f" * 32)
_SCOPE = TokenScope("team", ("box", "other"), 2000)
_TOKEN = _SIGNER.make(_SCOPE)
_GRANT = UrlGrant("team", "box", 8000, 1500)


def check_tokens(data: bytes, rng: random.Random) -> None:
    """No text is a token but those that were issued, and a URL grants no more than its token."""
    text = data.decode("latin-1")
    for given in (text, token_of(text)):
        if _SIGNER.read(given) is not None:
            assert given.partition("=")[0] == _TOKEN, "forged"
    made = make_token(_TOKEN, _GRANT)
    for given in (text, *tokens_of(data, {"cookie": text})):
        try:
            grant = check_token(_SIGNER, given, _GRANT.label, 0)
        except RequestRejected:
            continue
        assert given.rstrip("=") == made, "forged"
        assert grant == _GRANT
    assert not any(pair.startswith(b"sandpool-url=") for pair in without_token(data).partition(b"?")[2].split(b"&"))
    label = label_of(text)
    assert not label or (text.lower().startswith(label + ".") and len(label) <= 63)


# --- DNS -------------------------------------------------------------------------------------------------------------


def _resolve(name: str) -> list[str] | None:
    if not name.lower().endswith("cluster.local."):
        raise OutsideClusterDomain(name)
    return [f"10.0.0.{number}" for number in range(4)] if name.startswith("a") else None


def check_dns(data: bytes, rng: random.Random) -> None:
    reply = asyncio.run(DnsServer(_resolve).answer(data))
    if reply is not None:
        assert reply[:2] == data[:2], "a reply carries the number of its query"
        assert reply[2] & 0x80, "a reply is marked as one"
        assert len(reply) <= 2 * len(data) + 512, "a reply amplifies its query"


_SELECTORS = (
    *(b"a", b"app.example/name", b"=", b"==", b"!=", b"!", b" in ", b" notin ", b"(", b")", b",", b">", b"<"),
    *(b"7", b"labelSelector=", b"fieldSelector=", b"metadata.name", b"&", b"%00", b"%2C", b"limit=", b"continue="),
)
_JSON = (b"{", b"}", b"[", b"]", b":", b",", b'"a"', b"null", b"true", b"1e999", b"-0", b'"\\u003a"', b'"kind":"Pod"')
_YAML = (
    b"\n",
    b"- ",
    b"a: ",
    b"&a ",
    b"*a",
    b"<<: *a",
    b"!!int ",
    b"!!binary ",
    b"? ",
    b"|\n ",
    b"'",
    b'"',
    b"---\n",
    b"  ",
)
_PATCH = (
    *(
        *_JSON,
        b'{"op":"add","path":"/a","value":1}',
        b'"op":"copy"',
        b'"op":"test"',
        b'"from":"/a"',
        b'"path":"/items/-"',
    ),
    *(b'"$patch":"delete"', b'"$patch":"replace"', b'"$retainKeys":["a"]'),
    *(b'"$setElementOrder/items":[{"name":"x"}]', b"{}"),
    *(b'"$deleteFromPrimitiveList/finalizers":["x"]', b'"items":[{"name":"x","value":"y"}]', b'"finalizers":["x"]'),
)
_APPLY = (
    *(*_JSON, b'{"spec":{"tags":["a","b"]}}', b'"tags":["a"]', b'"tags":["a","a"]', b'"steps":["a"]', b'"size":1'),
    *(b'"parts":[{"name":"a","slot":2}]', b'{"name":"a"}', b'"limits":{"a":"1"}', b'"pair":{"left":"a"}', b'"spec":'),
    *(b'"anything":{"a":{"b":1}}', b'"metadata":{"labels":{"a":"b"}}', b'"managedFields":[]', b'"color":null', b"{}"),
    *(b'"ratios":[1,1.0,-0]', b'"groups":{"a":{"a":"b"}}', b'"status":{"conditions":[{"type":"a"}]}', b"[{},{}]"),
)
_PROTOBUF = (
    b"k8s\x00",
    b"\x0a\x02v1",
    b"\x12\x03Pod",
    b"\x0a",
    b"\x12",
    b"\x08\x01",
    b"\x1a\x00",
    b"\xff" * 9 + b"\x01",
)
_SPDY = tuple(
    itertools.chain(
        (bytes((0x80, 3, 0, kind)) for kind in range(1, 10)),
        (b"\x00\x00\x00\x01", b"\x00\x00\x00\x08", b"\x01\x00\x00\x04", b"\x00\xff\xff\xff"),
    )
)
_WEBSOCKET = (
    b"\x82\x81\0\0\0\0\x00",
    b"\x88\x80\0\0\0\0",
    b"\x89\x80\0\0\0\0",
    b"\x02\x81\0\0\0\0\x00",
    b"\x81\xfe",
    b"\x82\xff",
)
_DNS = (
    b"\x01a\x05local\0",
    b"\x07cluster\x05local\0",
    b"\xc0\x0c",
    b"\x00\x01\x00\x01",
    b"\x00\xff\x00\x01",
    b"\x3f",
    b"\0\0\x29",
)

_BROKER = (b"D\0\0\0\x01", b"A", b"C", b"\0P", b"\x04\x03\x05", b"teamboxuid-1", b"\0\0\0", b"\xff")


_E2B = (
    *(b"\0\0\0\0\x02{}", b"\x02\0\0\0\0", b"\0\0\0\0", b"\0\0\0\x01", b"\xff\xff\xff\xff", b"\x01", b"{", b"}"),
    *(b'"process":{"cmd":"a","args":["b"],"envs":{"A":"b"},"cwd":"/"}', b'"pty":{"size":{"cols":80,"rows":24}}'),
    *(b'"pid":1', b'"pid":"1"', b'"signal":"SIGNAL_SIGKILL"', b'"signal":9', b'"input":{"stdin":"eA=="}', b'"tag":"t"'),
    *(b'"process":', b'"stdin":true', b"null", b",", b":", b"[", b"]", b'"', b"signature=v1_&path=a&", b"49983-i.b"),
    *(
        b"Basic dXNlcjo=",
        b"&signature_expiration=1",
        b"&limit=1",
        b"&nextToken=",
        b"&metadata=a%253Db",
        b"-1",
        b"\xd9\xa3",
    ),
)


def check_e2b(data: bytes, rng: random.Random) -> None:
    """Requests of E2B's packages: envelopes, messages, hosts and queries."""
    whole, pieces = _envelopes([data]), _envelopes(reads(data, rng))
    assert whole == pieces, "the split into reads makes a difference"
    for each in [data, *whole[0]]:
        try:
            message = rpc.Message.decode(each)
            spec = process_api._spec(Call(None, "", None), message)  # type: ignore[arg-type]
            assert spec.command and all("\0" not in word for word in (spec.command, *spec.arguments, spec.directory))
            assert not any("=" in name or "\0" in name for name in spec.variables)
            process_api._signal(message)
            assert len(process_api._input(message.message("input"))) <= len(each)
        except rpc.RpcError as error:
            assert error.code in rpc.STATUS
    text = data.decode(errors="surrogateescape")
    try:
        assert len(basic_user(text)) <= 64
        address = address_of(text, {"E2b-Sandbox-Id": text})
        assert address is None or 1 <= address.port <= 65535
    except Refusal as refusal:
        assert 400 <= refusal.status < 500
    query = dict(pair.partition("=")[::2] for pair in text.split("&"))
    try:
        assert 1 <= ListQuery.of(query).limit <= 100
    except Refusal as refusal:
        assert refusal.status == 400
    signed = SignedRequest.of(query, READ)
    if signed is not None:
        assert not signed.is_signed_with("token")
        try:
            signed.check_expiration(1e18)
            assert not signed.expiration
        except Refusal as refusal:
            assert refusal.status == 401


def _envelopes(pieces: Iterable[bytes]) -> tuple[list[bytes], str]:
    """The messages of a stream, and the error that it ends with."""
    reader, found = rpc.EnvelopeReader(1 << 16), []
    try:
        for piece in pieces:
            found += [each.data for each in reader.feed(piece)]
        reader.finish()
    except rpc.RpcError as error:
        return found, error.message
    return found, ""


def check_dashboard(data: bytes, rng: random.Random) -> None:
    """Requests to the dashboard: bodies, and the headers that tell its own pages from others."""
    servers = surfaces()
    served = servers.served
    namespace = served.world.namespace
    path = rng.choice(
        (
            "/api/claims",
            f"/api/pools/{namespace}/python/scale",
            f"/api/pools/{namespace}/none/rollout",
            f"/api/sandboxes/{namespace}/none/mode",
            f"/api/sandboxes/{namespace}/none/run",
        )
    )
    answer = servers.ask(served.dashboard, "POST", path, served.session, data)
    assert 200 <= answer.status < 500, answer
    anonymous = servers.ask(served.dashboard, "POST", "/api/login", {"Origin": served.session["Origin"]}, data)
    assert 400 <= anonymous.status < 500, anonymous
    for name in ("Host", "Origin", "Cookie", "X-Sandpool-Session", "Sec-Fetch-Site"):
        changed = servers.ask(served.dashboard, "POST", "/api/claims", {**served.session, name: data}, b"{}")
        assert 400 <= changed.status < 500, (name, changed)  # {} is refused too, if the header lets it in
    shown = servers.ask(served.dashboard, "GET", "/api/live", {**served.session, "Cookie": data})
    assert 400 <= shown.status < 500, shown


def check_dashboard_terminal(data: bytes, rng: random.Random) -> None:
    """Messages to a terminal of the dashboard, which stays open whatever they are."""
    for as_text in (True, False):
        assert surfaces().terminal(list(reads(data, rng))[:50], as_text=as_text)


def check_mcp(data: bytes, rng: random.Random) -> None:
    """JSON-RPC over HTTP. The server goes on, and without the token there is no answer to anything."""
    servers = surfaces()
    port = servers.served.mcp
    headers = MCP_HEADERS
    answer = servers.ask(port, "POST", "/mcp", headers, data)
    assert 200 <= answer.status < 500, answer
    for name in ("Mcp-Session-Id", "Mcp-Protocol-Version", "Accept", "Content-Type", "Origin", "Host"):
        changed = servers.ask(port, "POST", "/mcp", {**headers, name: data}, _MCP_PING)
        assert 200 <= changed.status < 500, (name, changed)
    assert servers.ask(port, "POST", "/mcp", {**headers, "Authorization": data}, data).status in (400, 401)
    within = servers.ask(port, "POST", "/mcp", servers.served.mcp_session, data)
    assert 200 <= within.status < 500, within
    alive = servers.ask(port, "POST", "/mcp", headers, MCP_INITIALIZE)
    assert alive.status == 200 and b"serverInfo" in alive.body, alive


def check_mcp_tools(data: bytes, rng: random.Random) -> None:
    """Calls of a tool whose arguments have the input, in a sandbox that says the input. The tool answers, and no
    exception is a surprise to it: the SDK hides the text of those."""
    servers = surfaces()
    served = servers.served
    served.words.words, served.words.driver = data, rng.random() < 0.7
    text = data.decode(errors=rng.choice(("replace", "surrogateescape")))
    tool, arguments = rng.choice(
        (
            ("create_sandbox", {"warmpool": text}),
            ("create_sandbox", {"labels": {text: "a"}, "pod_annotations": {"a": text}}),
            ("create_sandbox", {"pod_labels": {"sandbox.users.io/a": text}}),
            ("delete_sandbox", {"sandbox_claim_name": text}),
            ("execute_command", {"command": text, "timeout": 1}),
            ("run_code", {"code": text, "timeout": 1}),
            ("upload_file", {"path": text, "content": text, "binary": rng.random() < 0.5, "timeout": 1}),
            ("download_file", {"path": text, "binary": rng.random() < 0.5, "timeout": 1}),
            ("list_files", {"path": text, "timeout": 1}),
            ("file_exists", {"path": text, "timeout": 1}),
            ("open_port", {"port": len(data), "expires_seconds": 1}),
            ("execute_command", {"command": "a", "sandbox_claim_name": text}),
        )
    )
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    answer = servers.ask(served.mcp, "POST", "/mcp", served.mcp_session, json.dumps(call).encode())
    assert answer.status in (200, 400), answer
    surprise = rb'"Error executing tool \w+"|"code":-32603'
    assert re.search(surprise, answer.body) is None, (tool, arguments, answer.body)
    made = re.search(rb'\\"sandbox_claim_name\\":\s*\\"([^"\\]+)', answer.body)
    if made is not None:
        gone = {**call, "params": {"name": "delete_sandbox", "arguments": {"sandbox_claim_name": made[1].decode()}}}
        assert servers.ask(served.mcp, "POST", "/mcp", served.mcp_session, json.dumps(gone).encode()).status == 200


def check_e2b_requests(data: bytes, rng: random.Random) -> None:
    """Requests to the E2B endpoint: JSON of the control plane, forms with files, and heads for ports."""
    servers = surfaces()
    served = servers.served
    key: dict[str, str | bytes] = {"X-API-Key": served.api_key}
    sandbox = served.sandbox["sandboxID"]
    token: dict[str, str | bytes] = {"E2b-Sandbox-Id": sandbox, "X-Access-Token": served.sandbox["envdAccessToken"]}
    for method, path in (
        ("POST", "/v2/sandboxes"),
        ("POST", f"/sandboxes/{sandbox}/refreshes"),
        ("POST", f"/v2/sandboxes/{sandbox}/connect"),
        ("POST", f"/sandboxes/{sandbox}/pause"),
    ):
        _is_decided(servers.ask(served.e2b, method, path, key, data))
    form = {**token, "Content-Type": "multipart/form-data; boundary=x"}
    _is_decided(servers.ask(served.e2b, "POST", "/files?path=a", form, data))
    _is_decided(servers.ask(served.e2b, "POST", "/files", {**token, "Content-Type": data}, data))
    for name in ("Host", "E2b-Sandbox-Id", "E2b-Sandbox-Port", "X-Access-Token", "Idempotency-Key", "X-API-Key"):
        _is_decided(servers.ask(served.e2b, "POST", "/v2/sandboxes", {**key, name: data}, b"{}"))
        _is_decided(servers.ask(served.e2b, "GET", "/x", {"Host": f"{PORT}-{sandbox}.localhost", name: data}))
    for name in ("Cookie", "Upgrade", "Accept-Encoding", "Content-Type", "E2B-Traffic-Access-Token", "X-Any"):
        host = f"{PORT}-{sandbox}.localhost"
        _is_decided(servers.ask(served.e2b, "POST", "/x", {"Host": host, name: data}))
    assert servers.ask(served.e2b, "GET", f"/sandboxes/{sandbox}", key).status == 200


def _is_decided(answer: FuzzedResponse) -> None:
    """Not a failure that the endpoint did not expect. It answers 5xx for what is behind it."""
    assert answer.status >= 200, answer
    assert b"its log has the reason" not in answer.body and b"Internal Server Error" not in answer.body, answer


_DASHBOARD = (
    *(
        b'{"namespace":"default",',
        b'"pool":"none"',
        b'"name":"x"',
        b'"minutes":1',
        b'"replicas":1',
        b'"strategy":',
        b"}",
    ),
    *(b'"suspended":true', b'"code":"1"', b'"language":"sh"', b"1e999", b"-1", b"null", b"[", b"]", b'"', b",", b":"),
    *(b'"\\u0000"', b'"\\ud800"', b"localhost", b"127.0.0.1", b"[::1]", b"http://", b"evil.example", b"@", b";", b"="),
    *(b"\xff", b"\xc3\xa9", b"none", b"same-origin", b'"columns":80', b'"rows":24', b"{", b"\x04"),
)
_MCP_PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
_MCP = (
    *(b'"jsonrpc":"2.0"', b'"id":1', b'"id":"a"', b'"id":null', b'"id":1.5', b'"method":"ping"', b'"method":', b'"x"'),
    *(b'"tools/list"', b'"tools/call"', b'"resources/read"', b'"params":{', b'"name":"list_sandboxes"', b'"uri":"'),
    *(b'"arguments":{"namespace":"default"}', b'"_meta":{"progressToken":1}', b'"error":{"code":1,"message":""}'),
    *(
        b'"result":{}',
        b"[",
        b"]",
        b"{",
        b"}",
        b",",
        b":",
        b'"',
        b"1e999",
        b"null",
        b'"\\ud800"',
        b"2026-07-28",
        b"Bearer ",
    ),
    *(b"application/json", b"text/event-stream", b"*/*", b"localhost", b"\xff", b"Bearer ", _MCP_PING),
    MCP_INITIALIZE,
)
_E2B_REQUESTS = (
    *(b'{"templateID":"none"', b'"timeout":1', b'"metadata":{"a":"b"}', b'"envVars":{"A":"b"}', b'"network":{', b"}"),
    *(b'"allowPublicTraffic":false', b'"memory":false', b'"duration":1', b"1e999", b"-1", b'"\\u0000"', b'"\\ud800"'),
    *(b"--x\r\n", b"--x--\r\n", b'Content-Disposition: form-data; name="file"; filename="a"\r\n', b"\r\n\r\n"),
    *(b"Content-Transfer-Encoding: base64\r\n", b"Content-Encoding: gzip\r\n", b"Content-Length: 5\r\n", b"\xff"),
    *(
        b"multipart/form-data; boundary=x",
        b"multipart/mixed",
        b"boundary=",
        b"8000-i.localhost",
        b"49983-",
        b"-1-",
        b":",
    ),
    *(b":", b'"', b",", b"[", b"]", b"{", b"null", b"e2b_", b"\x1f\x8b\x08", b"\xc3\xa9"),
)

#: Paths, names, archives of nothing, and lines of programs in a sandbox.
_MCP_TOOLS = (
    *(b"/", b"..", b".", b"-rf", b"\n", b"\0", b"a b", b"'", b'"', b"$(x)", b"python", b"x" * 64, b"sandpool.dev/run"),
    *(b'{"pid":1}', b'{"done":1}', b'{"stream":"stdout","data":""}', b"aGk=", b"\xff", b"\xc3\xa9", b"\xed\xa0\x80"),
    *(b"directory\0", b"file\0", b"1\0", b"1700000000\0", b"-1\0", b"1e999", b"{", b"}", b":", b",", b"\x1b[31m"),
)
#: Servers take milliseconds for an input, decoders microseconds.
_SERVER = 4
_RUN_REQUEST = (b"0.1.0", b"\0", b"\0003\0", b"\0002\0", b"-1", b"0", b"3", b"+1", b"1_0", b" 1", b"run", b"A", b"=")
_BINDING = (
    *(b'{"bind":{', b'"claim":', b'"uid-of-the-claim"', b'"values":{', b'"A":"b"', b'"key":"k"', b'{"recall":', b'"k"'),
    *(b'"the-key"', b"}", b"}}", b"[", b"]", b",", b":", b"\n", b'"\\ud800"', b'"\\u0000"', b"null", b"1e999", b"NaN"),
)
_TOKENS = (
    *(b"v1.", b"u1.", b".", b"=", b"Bearer ", b"Basic ", b"sandpool-url=", b"; ", b"&", b"?", b"e30", b"W10"),
    *(_TOKEN.encode(), make_token(_TOKEN, _GRANT).encode(), *_TOKEN.encode().split(b".")),
    *(_GRANT.label.encode(), b".localhost", b":80"),
)

TARGETS = (
    Target("router-response", check_router_response, _HTTP),
    Target("router-request", check_router_request, _HTTP),
    Target("sandboxd-request", check_sandboxd_request, _HTTP),
    Target("api-request", check_api_request, _HTTP),
    Target("selectors", check_selectors, _SELECTORS),
    Target("json", check_json, _JSON),
    Target("yaml", check_yaml, _YAML),
    Target("protobuf", check_protobuf, _PROTOBUF),
    Target("process-messages", check_process_messages, _PROTOBUF),
    Target("patches", check_patches, _PATCH),
    Target("apply", check_apply, _APPLY),
    Target("spdy", check_spdy, _SPDY),
    Target("port-forward", check_port_forward, _SPDY),
    Target("websocket", check_websocket, _WEBSOCKET),
    Target("dns", check_dns, _DNS),
    Target("router-broker", check_router_broker, _BROKER),
    Target("router-metrics", check_router_metrics, _JSON),
    Target("e2b", check_e2b, _E2B),
    Target("dashboard", check_dashboard, _DASHBOARD, _SERVER),
    Target("dashboard-terminal", check_dashboard_terminal, _DASHBOARD, _SERVER),
    Target("mcp", check_mcp, _MCP, _SERVER),
    Target("mcp-tools", check_mcp_tools, _MCP_TOOLS, _SERVER),
    Target("e2b-requests", check_e2b_requests, _E2B_REQUESTS, _SERVER),
    Target("run-request", check_run_request, _RUN_REQUEST),
    Target("binding", check_binding, _BINDING),
    Target("tokens", check_tokens, _TOKENS),
)
