"""Pull secrets: what is taken from them, and that a registry that asks for a password gets it."""

from __future__ import annotations

import base64
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest

from sandpool.api.kinds import SECRET
from sandpool.api.resource import Object
from sandpool.node.images.credentials import credentials
from sandpool.node.images.resolver import ImageResolver
from sandpool.node.pods.interfaces import ImageFailure
from sandpool.testing.objects import new
from tests.support.fake_node_parts import FakeSecrets, pull_secret, pulling_pod

ONE, TWO = {"auth": "b25l"}, {"auth": "dHdv"}


def auths(file: bytes) -> Any:
    return orjson.loads(file)["auths"]


@pytest.mark.parametrize(
    ("registries", "host", "taken"),
    [
        ({"example.com": ONE, "example.org": TWO}, "example.com", {"example.com": ONE}),
        ({"example.com/team": ONE}, "example.com", {"example.com/team": ONE}),
        ({"https://index.docker.io/v1/": ONE}, "docker.io", {"https://index.docker.io/v1/": ONE}),
        ({"example.com:5000": ONE}, "example.com:5000", {"example.com:5000": ONE}),
        ({"example.com": {"username": "a", "password": "b"}}, "example.com", {"example.com": {"auth": "YTpi"}}),
        ({"example.com": {**ONE, "email": "x", "program": "/bin/sh"}}, "example.com", {"example.com": ONE}),
    ],
)
async def test_credentials_of_the_registry_are_used(registries: Object, host: str, taken: Object) -> None:
    found = await credentials(pulling_pod("mine"), host, FakeSecrets(pull_secret("mine", registries)))
    assert auths(found.file) == taken
    assert found.problems == ""


async def test_dockercfg_secret_is_read() -> None:
    data = {".dockercfg": base64.b64encode(orjson.dumps({"example.com": ONE})).decode()}
    old = new(SECRET, "mine", type="kubernetes.io/dockercfg", data=data)
    assert auths((await credentials(pulling_pod("mine"), "example.com", FakeSecrets(old))).file) == {"example.com": ONE}


async def test_first_of_two_secrets_wins() -> None:
    secrets = FakeSecrets(pull_secret("a", {"example.com": ONE}), pull_secret("b", {"example.com": TWO}))
    assert auths((await credentials(pulling_pod("b", "a"), "example.com", secrets)).file) == {"example.com": TWO}


@pytest.mark.parametrize(
    ("secret", "problems"),
    [
        (pull_secret("another", {}), 'pull secret "mine" does not exist'),
        (
            new(SECRET, "mine", type="Opaque", data={}),
            'pull secret "mine" is not of type kubernetes.io/dockerconfigjson',
        ),
        (pull_secret("mine", {"example.com": {}}), 'pull secret "mine" holds no credentials in .dockerconfigjson'),
        (pull_secret("mine", {"example.org": ONE}), "no pull secret of the pod is for example.com"),
        (
            new(SECRET, "mine", type="kubernetes.io/dockerconfigjson", data={".dockerconfigjson": "bm8="}),
            'pull secret "mine" holds no credentials in .dockerconfigjson',
        ),
    ],
)
async def test_unusable_secrets_are_reported(secret: Object, problems: str) -> None:
    found = await credentials(pulling_pod("mine"), "example.com", FakeSecrets(secret))
    assert found.file == b""
    assert found.problems.startswith(problems)


async def test_pod_without_pull_secrets_has_no_problems() -> None:
    assert await credentials(pulling_pod(), "example.com", FakeSecrets()) == (b"", "")


@contextmanager
def registry(layout: Path, password: str) -> Iterator[str]:
    """Serve an OCI layout to clients with the password. Yields the host."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers["Authorization"] != f"Basic {password}":
                self._answer(401, b"", ("WWW-Authenticate", 'Basic realm="here"'))
                return
            name = self.path.rpartition("/")[2]
            if name == "v1":
                name = orjson.loads((layout / "index.json").read_bytes())["manifests"][0]["digest"]
            blob = layout / "blobs" / name.replace(":", "/")
            if not blob.is_file():
                self._answer(200, b"{}", ("Content-Type", "application/json"))
                return
            kind = (
                "application/vnd.oci.image.manifest.v1+json"
                if "/manifests/" in self.path
                else "application/octet-stream"
            )
            self._answer(200, blob.read_bytes(), ("Content-Type", kind), ("Docker-Content-Digest", name))

        def _answer(self, code: int, body: bytes, *headers: tuple[str, str]) -> None:
            self.send_response(code)
            for name, value in (*headers, ("Content-Length", str(len(body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, template: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


async def test_registry_with_a_password_is_pulled_from(
    layout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed")
    password = base64.b64encode(b"alice:secret").decode()
    with registry(layout, password) as host:
        settings = tmp_path / "home/.config/containers/registries.conf"
        settings.parent.mkdir(parents=True)
        settings.write_text(f'[[registry]]\nlocation = "{host}"\ninsecure = true\n')
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        secrets = FakeSecrets(pull_secret("mine", {host: {"auth": password}}), pull_secret("wrong", {host: ONE}))
        images = ImageResolver(tmp_path / "images", set, secrets)
        for pod in (pulling_pod(), pulling_pod("wrong"), pulling_pod("gone")):
            with pytest.raises(ImageFailure, match="could not be pulled: skopeo: ") as failure:
                await images.resolve(f"{host}/tiny:v1", "IfNotPresent", pod)
        assert 'pull secret "gone" does not exist' in str(failure.value)
        image = await images.resolve(f"{host}/tiny:v1", "IfNotPresent", pulling_pod("mine"))
        assert image.entrypoint == ("/bin/serve",)
    kept = [path for path in (tmp_path / "images").rglob("*") if path.is_file()]
    assert kept
    assert not any(password.encode() in path.read_bytes() for path in kept), "nothing of the password is left"
