"""Container specs built from pod and image."""

from __future__ import annotations

from typing import Any

import pytest

from sandpool.api.resource import Object
from sandpool.node.pods.container_spec import build_container_spec, command_line, container_limits, pod_limits
from sandpool.node.pods.environment import ConfigError
from sandpool.node.pods.identity import Identity, identity
from sandpool.node.pods.interfaces import Image
from sandpool.node.pods.spec import Container
from sandpool.node.runtimes.runtime import DEFAULT_SCRATCH, HostToolchain
from sandpool.testing.objects import pod

IMAGE = Image("id", HostToolchain(), {"PATH": "/image", "A": "image"}, ("entry",), ("$(A)",), "/image", "7:8")


@pytest.mark.parametrize(
    ("spec", "argv"),
    [
        ({}, ("entry", "$(A)")),
        ({"command": ["run"]}, ("run",)),
        ({"args": ["$(A)", "b"]}, ("entry", "1", "b")),
        ({"command": ["run", "$(A)"], "args": ["$$(A)"]}, ("run", "1", "$(A)")),
    ],
)
def test_command_and_args_override_the_image(spec: Object, argv: tuple[str, ...]) -> None:
    assert command_line(spec, IMAGE, {"A": "1"}) == argv


def test_missing_command_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no command specified"):
        command_line({}, Image("id", HostToolchain()), {})


@pytest.mark.parametrize(
    ("of_pod", "of_container", "of_image", "expected"),
    [
        ({}, {}, "", Identity(0, 0)),
        ({}, {}, "7", Identity(7, 7)),
        ({}, {}, "7:8", Identity(7, 8)),
        ({}, {}, "root", Identity(0, 0)),
        ({"runAsUser": 5}, {}, "7:8", Identity(5, 5)),
        ({"runAsUser": 5, "runAsGroup": 6}, {}, "", Identity(5, 6)),
        ({"runAsUser": 5, "runAsGroup": 6}, {"runAsUser": 9}, "", Identity(9, 6)),
        ({"runAsNonRoot": True}, {"runAsUser": 9}, "", Identity(9, 9)),
        ({"runAsNonRoot": True}, {"runAsNonRoot": False}, "", Identity(0, 0)),
    ],
)
def test_user_and_group_come_from_container_pod_or_image(
    of_pod: Object, of_container: Object, of_image: str, expected: Identity
) -> None:
    assert identity(of_pod, of_container, of_image) == expected


@pytest.mark.parametrize(
    ("of_pod", "of_image", "words"),
    [
        ({"runAsNonRoot": True, "runAsUser": 0}, "", "container's runAsUser breaks non-root policy"),
        ({"runAsNonRoot": True}, "0", "container has runAsNonRoot and image will run as root"),
        ({"runAsNonRoot": True}, "", "container has runAsNonRoot and image will run as root"),
        ({}, "another", "the user of the image (another) is a name its files do not know: set runAsUser"),
    ],
)
def test_run_as_non_root_rejects_root(of_pod: Object, of_image: str, words: str) -> None:
    with pytest.raises(ConfigError) as failed:
        identity(of_pod, {}, of_image)
    assert str(failed.value) == words


def composed(**container: Any) -> Any:
    spec = {"name": "main", "image": "i", **container}
    read = Container.read(spec)
    return build_container_spec(
        pod("box", spec={"containers": [spec]}), read, IMAGE, {"A": "own"}, (), hostname="box", pids=9
    )


def test_pod_variables_override_image_variables() -> None:
    spec = composed()
    assert spec.env == {"PATH": "/image", "HOSTNAME": "box", "HOME": "/home/sandbox", "A": "own"}
    assert (spec.cwd, spec.uid, spec.gid) == ("/image", 7, 8)
    assert composed(workingDir="/own").cwd == "/own"


def test_toolchain_image_sets_home() -> None:
    assert composed(securityContext={"runAsUser": 0}).env["HOME"] == "/root"
    spec: Object = {"name": "main", "image": "i"}
    whole = pod("box", spec={"containers": [spec]})
    assert (
        build_container_spec(whole, Container.read(spec), IMAGE, {"HOME": "/own"}, (), hostname="box").env["HOME"]
        == "/own"
    )


def test_terminal_and_read_only_root_are_passed_on() -> None:
    spec = composed(tty=True, stdin=True, securityContext={"readOnlyRootFilesystem": True})
    assert (spec.tty, spec.stdin, spec.read_only_root, spec.env["TERM"]) == (True, True, True, "xterm")


@pytest.mark.parametrize(
    ("fields", "once"),
    [
        ({"stdin": True, "stdinOnce": True}, True),
        ({"stdin": True}, False),
        ({"stdinOnce": True}, False),
        ({"stdin": True, "stdinOnce": True, "tty": True}, False),
    ],
)
def test_stdin_once_needs_stdin_and_no_tty(fields: dict[str, bool], once: bool) -> None:
    assert composed(**fields).stdin_once is once


def test_ephemeral_storage_limits_the_writable_root() -> None:
    assert composed().scratch.size == DEFAULT_SCRATCH
    assert composed(resources={"limits": {"ephemeral-storage": "10Mi"}}).scratch.size == 10 << 20


def test_container_limits_follow_the_resources() -> None:
    resources = {"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "250m"}}
    limits = container_limits({"resources": resources}, 9)
    assert (limits.cpu, limits.cpu_request, limits.memory, limits.pids) == (0.5, 0.25, 64 << 20, 9)


def test_pod_limits_add_up_concurrent_containers() -> None:
    def container(memory: str | None, **fields: str) -> Object:
        return {"name": "c", "resources": {"limits": {"memory": memory} if memory else {}}, **fields}

    whole = pod(
        "box", spec={"containers": [container("64Mi"), container("32Mi")], "initContainers": [container("80Mi")]}
    )
    assert pod_limits(whole, 10).memory == 96 << 20
    assert pod_limits(whole, 10).pids == 20
    large = pod("box", spec={"containers": [container("64Mi")], "initContainers": [container("80Mi")]})
    assert pod_limits(large, 10).memory == 80 << 20
    open_ended = pod("box", spec={"containers": [container("64Mi"), container(None)]})
    assert pod_limits(open_ended, 10).memory is None
