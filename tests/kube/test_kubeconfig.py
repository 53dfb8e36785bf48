"""Kubeconfigs: what is found where, and what a person is told when it is not."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from sandpool.kube import kubeconfig
from sandpool.kube.credentials import ANONYMOUS, TokenFile
from sandpool.kube.execplugin import ExecPlugin
from sandpool.kube.http import HttpTransport
from sandpool.kube.kubeconfig import KubeconfigError, load
from sandpool.kube.transport import Request


def config(
    cluster: Any = None, user: Any = None, *, name: str = "main", namespace: str | None = None
) -> dict[str, Any]:
    return {
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.example.com", **(cluster or {})}}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}],
        "current-context": name,
    }


def write(path: Path, content: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content))
    return path


def data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


async def authorization(path: Path, context: str | None = None) -> str | None:
    return (await load(path, context, environ={}).credentials.auth()).authorization


def test_context_is_selected_by_name(tmp_path: Path) -> None:
    both = config(namespace="team")
    for kind, entries in config(name="other").items():
        if kind != "current-context":
            both[kind] += entries
    path = write(tmp_path / "config", both)
    current = load(path, environ={})
    assert (current.server, current.namespace) == ("https://main.example.com", "team")
    other = load(path, "other", environ={})
    assert (other.server, other.namespace) == ("https://other.example.com", "default")
    assert other.tls is not None
    assert other.tls.verify_mode == ssl.CERT_REQUIRED
    assert other.tls.check_hostname


async def test_tokens_and_passwords_are_read(tmp_path: Path) -> None:
    path = tmp_path / "config"
    write(path, config(user={"token": "t"}))
    assert await authorization(path) == "Bearer t"
    write(path, config(user={"username": "u", "password": "p"}))
    assert await authorization(path) == "Basic dTpw"
    write(path, config())
    assert load(path, environ={}).credentials is ANONYMOUS
    (tmp_path / "token").write_text("from file")
    write(path, config(user={"token": "t", "tokenFile": "token"}))
    assert await authorization(path) == "Bearer from file"


def test_default_paths_are_those_of_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(KubeconfigError, match="set KUBECONFIG"):
        load(environ={})
    write(tmp_path / ".kube" / "config", config(name="home"))
    assert load(environ={}).server == "https://home.example.com"
    listed = write(tmp_path / "listed", config(name="listed"))
    assert load(environ={"KUBECONFIG": str(listed)}).server == "https://listed.example.com"
    assert load(environ={"KUBECONFIG": "~/listed"}).server == "https://listed.example.com"
    with pytest.raises(KubeconfigError, match="none of the files in KUBECONFIG exists"):
        load(environ={"KUBECONFIG": str(tmp_path / "missing")})


async def test_several_files_are_merged_and_the_first_wins(tmp_path: Path) -> None:
    first = config(user={"tokenFile": "token"}, name="a")
    second = {**config(user={"token": "ignored"}, name="a"), "current-context": "b"}
    for kind, entries in config(user={"tokenFile": "token"}, name="b").items():
        if kind != "current-context":
            second[kind] += entries
    write(tmp_path / "one" / "config", first)
    write(tmp_path / "two" / "config", second)
    for folder in ("one", "two"):
        (tmp_path / folder / "token").write_text(folder)
    environ = {"KUBECONFIG": f"{tmp_path}/one/config:{tmp_path}/missing:{tmp_path}/two/config"}
    assert load(environ=environ).server == "https://a.example.com"
    assert (await load(environ=environ).credentials.auth()).authorization == "Bearer one"
    # A path is relative to the file it is in.
    assert (await load(context="b", environ=environ).credentials.auth()).authorization == "Bearer two"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "is not YAML"),
        ("just text", "is not a kubeconfig"),
        ("clusters: [{name: a}]", "has a cluster without name or without content"),
        ("users: [{user: {}}]", "has a user without name or without content"),
        ("contexts: [text]", "has a context without name or without content"),
        ("{}", "no current context set"),
        ("current-context: nope", "context 'nope' not found"),
        (yaml.safe_dump({**config(), "clusters": []}), "names the cluster or user 'main'"),
        (yaml.safe_dump({**config(), "users": None}), "names the cluster or user 'main'"),
        (yaml.safe_dump(config({"server": "example.com"})), "is not a server address"),
        (yaml.safe_dump(config({"server": "http://a.example.com"}, {"token": "t"})), "unencrypted"),
        (yaml.safe_dump(config({"certificate-authority": "missing.crt"})), "cannot be used: .*No such file"),
        (yaml.safe_dump(config({"certificate-authority-data": "!"})), "cannot be used: .*base64"),
        (yaml.safe_dump(config({"proxy-url": "socks5://p:1080"})), "only http:// and https:// proxies"),
        (yaml.safe_dump(config(user={"client-certificate": "a.crt"})), "must be given together"),
        (yaml.safe_dump(config(user={"auth-provider": {"name": "gcp"}})), "'gcp' is not supported"),
        (yaml.safe_dump(config(user={"exec": {"command": "x"}})), "cannot be used: .*apiVersion"),
        (yaml.safe_dump(config(user={"exec": {"command": "x", "apiVersion": "v0"}})), "are supported"),
        (
            yaml.safe_dump(config(user={"exec": {"command": "x", "apiVersion": "v1", "interactiveMode": "Always"}})),
            "needs a terminal",
        ),
    ],
)
def test_malformed_kubeconfig_is_reported(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(KubeconfigError, match=message):
        load(path, environ={})


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=f"cannot read the kubeconfig {tmp_path}/none: No such file"):
        load(tmp_path / "none")


@pytest.mark.parametrize(
    ("cluster", "environ", "expected"),
    [
        ({}, {}, None),
        ({"proxy-url": "http://p:1"}, {"HTTPS_PROXY": "http://q:2"}, "http://p:1"),
        ({}, {"HTTPS_PROXY": "http://q:2"}, "http://q:2"),
        ({}, {"https_proxy": "http://q:2", "no_proxy": ".example.com"}, None),
        ({}, {"HTTP_PROXY": "http://q:2"}, None),
        ({"server": "https://127.0.0.1:6443"}, {"HTTPS_PROXY": "http://q:2"}, None),
    ],
)
def test_proxy_comes_from_the_cluster_or_the_environment(
    tmp_path: Path, cluster: Any, environ: dict[str, str], expected: str | None
) -> None:
    path = write(tmp_path / "config", config(cluster))
    assert load(path, environ=environ).proxy == expected


async def test_exec_plugin_is_read_from_the_kubeconfig(tmp_path: Path, authority: Any) -> None:
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "bin/plugin",
        "args": ["login"],
        "env": [{"name": "A", "value": "b"}],
        "installHint": "hint",
        "provideClusterInfo": True,
    }
    cluster = {
        "certificate-authority": str(authority.certificate),
        "tls-server-name": "name",
        "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}],
    }
    connection = load(write(tmp_path / "config", config(cluster, {"exec": plugin})), environ={})
    assert connection.tls_server_name == "name"
    assert isinstance(connection.credentials, ExecPlugin)
    described = connection.credentials.plugin
    assert described.command == str(tmp_path / "bin/plugin")
    assert (list(described.args), described.env, described.install_hint) == (["login"], {"A": "b"}, "hint")
    assert described.cluster == {
        "server": "https://main.example.com",
        "tls-server-name": "name",
        "certificate-authority-data": data(authority.certificate),
        "config": {"audience": "x"},
    }


async def peer(request: web.BaseRequest) -> web.StreamResponse:
    """Says whose certificate and which token it saw."""
    assert request.transport is not None
    certificate = request.transport.get_extra_info("peercert")
    name = certificate["subject"][0][0][1] if certificate else None
    return web.json_response([name, request.headers.get("Authorization")])


@pytest.fixture
async def server(authority: Any) -> Any:
    runner = web.ServerRunner(web.Server(peer))
    await runner.setup()
    tls = authority.server_context("127.0.0.1", ask_for_certificate=True)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def ask(path: Path) -> Any:
    transport = HttpTransport(load(path, environ={}))
    try:
        return await transport.request(Request("GET", "/"))
    finally:
        await transport.close()


async def test_client_certificates_are_read_from_files_and_data(tmp_path: Path, authority: Any, server: str) -> None:
    pair = authority.sign("carol")
    files = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
    inline = {"client-certificate-data": data(pair.certificate), "client-key-data": data(pair.key)}
    for user in (files, inline):
        for trust in (
            {"certificate-authority": str(authority.certificate)},
            {"certificate-authority-data": data(authority.certificate)},
            {"insecure-skip-tls-verify": True},
        ):
            path = write(tmp_path / "config", config({"server": server, **trust}, user))
            assert await ask(path) == ["carol", None]


async def test_untrusted_server_gets_no_credentials(tmp_path: Path, server: str) -> None:
    path = write(tmp_path / "config", config({"server": server}, {"token": "t"}))
    with pytest.raises(ConnectionError, match="certificate"):
        await ask(path)


async def test_plugin_can_return_a_certificate(tmp_path: Path, authority: Any, server: str) -> None:
    pair = authority.sign("dave")
    status = {"clientCertificateData": pair.certificate.read_text(), "clientKeyData": pair.key.read_text()}
    version = "client.authentication.k8s.io/v1"
    answer = {"apiVersion": version, "kind": "ExecCredential", "status": status}
    code = f"import json; print(json.dumps({answer!r}))"
    plugin = {"apiVersion": version, "command": sys.executable, "args": ["-S", "-c", code]}
    trust = {"server": server, "certificate-authority": str(authority.certificate)}
    assert await ask(write(tmp_path / "config", config(trust, {"exec": plugin}))) == ["dave", None]


def service_account(folder: Path, authority: Any) -> Path:
    (folder / "token").write_text("pod token")
    (folder / "namespace").write_text("team\n")
    (folder / "ca.crt").write_bytes(authority.certificate.read_bytes())
    return folder


IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


async def test_service_account_is_used_in_a_pod(
    tmp_path: Path, authority: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = service_account(tmp_path, authority)
    connection = load(environ=IN_POD, service_account=folder)
    assert (connection.server, connection.namespace) == ("https://10.0.0.1:443", "team")
    assert isinstance(connection.credentials, TokenFile)
    assert (await connection.credentials.auth()).authorization == "Bearer pod token"
    six = kubeconfig.in_cluster(environ={**IN_POD, "KUBERNETES_SERVICE_HOST": "fd00::1"}, service_account=folder)
    assert six.server == "https://[fd00::1]:443"


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_missing_service_account_files_are_reported(tmp_path: Path, authority: Any, missing: str) -> None:
    folder = service_account(tmp_path, authority)
    (folder / missing).unlink()
    with pytest.raises(KubeconfigError, match="service account cannot be used"):
        kubeconfig.in_cluster(environ=IN_POD, service_account=folder)


def test_a_kubeconfig_in_json_is_read_without_yaml(tmp_path: Path) -> None:
    """It is the kubeconfig of ``sandpool up``, and every command reads it."""
    path = tmp_path / "config"
    path.write_text("# A comment.\n" + json.dumps(config({"server": "https://127.0.0.1:6443"}, {"token": "t"})))
    code = (
        "import sys; from sandpool.kube import kubeconfig; "
        f"print(kubeconfig.load({str(path)!r}).server); "
        "print([name for name in ('yaml', 'aiohttp', 'urllib.request') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "https://127.0.0.1:6443\n[]\n"


def test_in_cluster_outside_a_pod_is_an_error() -> None:
    with pytest.raises(KubeconfigError, match="not in a pod"):
        kubeconfig.in_cluster(environ={})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes the owner of a file")
@pytest.mark.parametrize(("uid", "mode"), [(54321, 0o600), (0, 0o666)], ids=["of another user", "writable for all"])
def test_exec_plugin_of_a_kubeconfig_that_others_can_write_is_refused(tmp_path: Path, uid: int, mode: int) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "program"}
    path = write(tmp_path / "config", config(user={"exec": plugin}))
    assert isinstance(load(path, environ={}).credentials, ExecPlugin)
    os.chown(path, uid, uid)
    os.chmod(path, mode)
    with pytest.raises(KubeconfigError, match="exec plugin program is not run: another user can write "):
        load(path, environ={})
    credentials = load(write(tmp_path / "with token", config(user={"token": "x"})), environ={}).credentials
    assert credentials is not None
