"""Real clients against ``sandpool server`` over TLS, and against a real Kubernetes to see that the tests are right."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandpool.bench.sdk_process import MissingSdk, SdkProcess, find_python
from sandpool.bench.server_process import ServerProcess
from tests.support.control_plane import ControlPlane
from tests.support.kubectl import Kubectl, find_kubectls
from tests.support.private_network import PrivateHome
from tests.support.sdk_scripts import POOLS
from tests.support.users import USERS

CRDS = Path(__file__).parents[2] / "deploy" / "crds"
KUBECTLS = find_kubectls()
Server = ServerProcess | ControlPlane


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every kubectl meets our server, the old ones only when there is time; one of them meets the real one, which says
    whether the test is right."""
    if "kubectl" in metafunc.fixturenames:
        missing = pytest.mark.skip(reason="no kubectl: install the Debian package kubectl or kubernetes-client")
        combinations = [
            pytest.param("sandpool", name, id=f"sandpool-{name}", marks=[pytest.mark.long] if name[0] == "1" else [])
            for name in KUBECTLS
        ]
        combinations += [
            pytest.param("kubernetes", name, id=f"kubernetes-{name}", marks=pytest.mark.kubernetes)
            for name in list(KUBECTLS)[-1:]
        ]
        metafunc.parametrize(
            ("target", "binary"), combinations or [pytest.param("", "", marks=missing)], scope="session"
        )
    elif "server" in metafunc.fixturenames:
        kubernetes = pytest.param("kubernetes", marks=pytest.mark.kubernetes)
        metafunc.parametrize("target", ["sandpool", kubernetes], scope="session")


@pytest.fixture(scope="session")
def sandpool_server() -> Iterator[ServerProcess]:
    with ServerProcess(users=USERS) as server:
        yield server


@pytest.fixture
def server(target: str, request: pytest.FixtureRequest) -> Server:
    """The API under test; each is started when the first test needs it."""
    found: Server = request.getfixturevalue("sandpool_server" if target == "sandpool" else "control_plane")
    return found


@pytest.fixture(scope="session")
def discovery_caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("discovery")


@pytest.fixture
def namespace() -> str:
    """A unique name; the fixtures of each client create the namespace."""
    return f"t-{secrets.token_hex(5)}"


@pytest.fixture
def kubectl(server: Server, binary: str, namespace: str, discovery_caches: Path) -> Kubectl:
    """kubectl in a fresh namespace."""
    cache = discovery_caches / f"{type(server).__name__}-{binary}"
    kubectl = Kubectl(KUBECTLS[binary], server.kubeconfig, cache, namespace)
    kubectl("create", "namespace", namespace)
    return kubectl


@pytest.fixture
def sandbox_kinds(kubectl: Kubectl, target: str) -> None:
    """Our own kinds, for a server that does not have them from the start. Applying them again changes nothing."""
    if target == "kubernetes":
        kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRDS))
        kubectl("wait", "--for=condition=Established", "-f", str(CRDS))


@pytest.fixture(scope="session")
def sandbox_definitions() -> list[Any]:
    return [yaml.load(manifest.read_text(), yaml.CSafeLoader) for manifest in sorted(CRDS.glob("*.yaml"))]


@pytest.fixture(scope="session")
def home() -> Iterator[PrivateHome]:
    """``sandpool up`` with real sandboxes and the pools that scripts of the SDK use."""
    try:
        find_python()
    except MissingSdk as missing:
        pytest.skip(str(missing))
    home = PrivateHome().start()
    try:
        home.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(POOLS))
        yield home
    finally:
        home.stop()


@pytest.fixture(scope="session")
def sdk_sync(home: PrivateHome) -> Iterator[SdkProcess]:
    process = home.sdk()
    yield process
    process.stop()


@pytest.fixture(scope="session")
def sdk_async(home: PrivateHome) -> Iterator[SdkProcess]:
    process = home.sdk(asynchronous=True)
    yield process
    process.stop()


@pytest.fixture(scope="session", params=["sync", "async"])
def either(request: pytest.FixtureRequest) -> SdkProcess:
    """A program that uses the SDK, in each of its two forms."""
    process: SdkProcess = request.getfixturevalue(f"sdk_{request.param}")
    return process
