"""Encoded container specs are decoded unchanged."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sandpool.node.cgroups.limits import Limits
from sandpool.node.runtimes.runtime import (
    Bind,
    ContainerSpec,
    DataFile,
    HostToolchain,
    ImageLayers,
    PodSandbox,
    Scratch,
    Tmpfs,
)
from sandpool.node.runtimes.spec_codec import (
    SPEC,
    pod_from_json,
    pod_to_json,
    recorded_roots,
    spec_from_json,
    spec_to_json,
)

text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
paths = text.map(lambda name: Path("/", name))
numbers = st.none() | st.integers(0, 1 << 40)
limits = st.builds(Limits, cpu=st.none() | st.floats(0.001, 64), memory=numbers, pids=numbers)
mounts = st.one_of(
    st.builds(Bind, paths, text, st.booleans(), text),
    st.builds(Tmpfs, text, st.integers(0, 1 << 40)),
    st.builds(DataFile, text, st.binary(max_size=50)),
)
specs = st.builds(
    ContainerSpec,
    name=text,
    argv=st.lists(text, min_size=1, max_size=4).map(tuple),
    env=st.dictionaries(text, text, max_size=4),
    cwd=text,
    uid=st.integers(0, 65535),
    root=st.builds(HostToolchain, st.lists(paths, max_size=3).map(tuple), st.lists(paths, max_size=3).map(tuple))
    | st.builds(ImageLayers, st.lists(paths, min_size=1, max_size=3).map(tuple)),
    scratch=st.builds(Scratch, st.integers(1, 1 << 40), st.none() | paths, st.none() | paths),
    mounts=st.lists(mounts, max_size=4).map(tuple),
    limits=limits,
    tty=st.booleans(),
    stdin=st.booleans(),
    stdin_once=st.booleans(),
)
pods = st.builds(
    PodSandbox, uid=text, directory=paths, host_uid=st.integers(1, 1 << 31), host_gid=st.integers(1, 1 << 31),
    netns=st.none() | paths, hostname=text, hosts=text, resolv_conf=text, limits=limits,
)  # fmt: skip


@given(specs)
def test_container_specs_are_decoded_as_encoded(spec: ContainerSpec) -> None:
    assert spec_from_json(json.loads(json.dumps(spec_to_json(spec)))) == spec


@given(pods)
def test_pods_are_decoded_as_encoded(pod: PodSandbox) -> None:
    assert pod_from_json(json.loads(json.dumps(pod_to_json(pod)))) == pod


def test_roots_of_all_containers_are_listed(tmp_path: Path) -> None:
    host, image = HostToolchain((Path("/opt/python"), Path("/old"))), ImageLayers((Path("/image"),))
    roots: list[HostToolchain | ImageLayers] = [host, image, HostToolchain()]
    for number, root in enumerate(roots):
        state = tmp_path / f"pod-{number}" / "main"
        state.mkdir(parents=True)
        (state / SPEC).write_text(json.dumps(spec_to_json(ContainerSpec("main", ("true",), root=root))))
    (tmp_path / "pod-0" / "half").mkdir()
    (tmp_path / "pod-0" / "half" / SPEC).write_text('{"name"')
    (tmp_path / "pod-0" / "volumes").mkdir()
    assert recorded_roots(tmp_path) == {Path("/opt/python"), Path("/old"), Path("/image")}
    assert recorded_roots(tmp_path / "none") == set()


def test_encoding_copies_no_values() -> None:
    spec = ContainerSpec("runtime", ("python3", "-m", "server"))
    assert spec_to_json(spec)["argv"] is spec.argv
