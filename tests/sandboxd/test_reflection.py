"""gRPC reflection of the daemon, read with the protobuf package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandpool.sandboxd.root import Root
from tests.support.protobuf import message, read

grpc = pytest.importorskip("grpc")
descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
descriptor_pool = pytest.importorskip("google.protobuf.descriptor_pool")
message_factory = pytest.importorskip("google.protobuf.message_factory")
from sandpool.sandboxd import reflection  # noqa: E402 - it imports grpc
from sandpool.sandboxd.process_api import SERVICE, ProcessApi  # noqa: E402 - likewise


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[Any]:
    root = Root(str(tmp_path / "root"))
    server = ProcessApi(root).server()
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    server.stop(0).wait()
    root.close()


def ask(channel: Any, request: bytes, service: str = reflection.SERVICES[0]) -> dict[int, Any]:
    answers = channel.stream_stream(f"/{service}/ServerReflectionInfo")(iter([request]), timeout=60)
    (answer,) = [read(each) for each in answers]
    return answer


def described(channel: Any, request: bytes) -> Any:
    file = descriptor_pb2.FileDescriptorProto()
    file.ParseFromString(read(ask(channel, request)[4])[1])
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


@pytest.mark.parametrize("service", reflection.SERVICES)
def test_services_are_listed(channel: Any, service: str) -> None:
    assert SERVICE.encode() in ask(channel, message(7, b""), service)[6]


@pytest.mark.parametrize(
    "request_",
    [
        message(3, reflection.FILE.encode()),
        message(4, SERVICE.encode()),
        message(4, b"process.v1.StartRequest"),
    ],
)
def test_file_describes_messages_and_methods(channel: Any, request_: bytes) -> None:
    service = described(channel, request_).FindServiceByName(SERVICE)
    shapes = {
        method.name: (method.input_type.name, method.output_type.name, method.server_streaming)
        for method in service.methods
    }
    assert shapes == {
        "Execute": ("ExecuteRequest", "ExecuteResponse", False),
        "Start": ("StartRequest", "StartResponse", True),
        "WriteStdin": ("WriteStdinRequest", "WriteStdinResponse", False),
        "SendSignal": ("SendSignalRequest", "SendSignalResponse", False),
        "ResizeTTY": ("ResizeTTYRequest", "ResizeTTYResponse", False),
    }


def test_described_messages_are_enough_for_a_call(channel: Any) -> None:
    pool = described(channel, message(4, SERVICE.encode()))
    asked, answered = (
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"process.v1.Execute{each}"))
        for each in ("Request", "Response")
    )
    request = asked()
    request.config.command.extend(["/bin/sh", "-c", "echo $A; pwd >&2; exit 3"])
    request.config.env_vars["A"] = "b"
    request.config.cwd = "/"
    call = channel.unary_unary(f"/{SERVICE}/Execute")
    answer = answered.FromString(call(request.SerializeToString(), timeout=60))
    assert (answer.exit_code, answer.stdout) == (3, b"b\n")
    assert answer.stderr.endswith(b"/root\n")


def test_oneof_is_described(channel: Any) -> None:
    pool = described(channel, message(4, SERVICE.encode()))
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("process.v1.StartResponse"))
    event = kind.FromString(b"\x22\x03\x08\xac\x02")
    assert (event.WhichOneof("event"), event.exit.exit_code) == ("exit", 300)


@pytest.mark.parametrize("request_", [message(3, b"other.proto"), message(4, b"other.Service"), message(5, b""), b""])
def test_unknown_names_are_not_found(channel: Any, request_: bytes) -> None:
    assert read(ask(channel, request_)[7])[1] == 5
