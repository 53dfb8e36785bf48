"""Loads the connection from kubeconfig files or from the service account of the pod.

The module reads the file itself: client libraries take 0.1 s (lightkube) to 0.3 s (kubernetes_asyncio) to import, more
than a whole ``sandpool run`` may take, and lack several files in KUBECONFIG, proxy-url, tls-server-name, exec plugins
of the v1 API or exec plugins that return certificates. PyYAML is imported only for files that are not JSON, which is
a subset of YAML: the kubeconfig of ``sandpool up`` is.
"""

from __future__ import annotations

import base64
import os
import ssl
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from sandpool.kube.connection import Connection, is_loopback
from sandpool.kube.credentials import ANONYMOUS, Credentials, CredentialsError, Fixed, TokenFile
from sandpool.kube.tls import client_tls

DEFAULT_PATH = "~/.kube/config"
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"

# Names the file in the description of an exec plugin if another user can write that file. No field of a kubeconfig.
_WRITABLE = "file that another user can write"
# Fields with paths, which are relative to the kubeconfig file.
_PATHS = {
    "cluster": ("certificate-authority",),
    "user": ("client-certificate", "client-key", "tokenFile"),
    "context": (),
}


class KubeconfigError(Exception):
    """There is no usable configuration. The message names the file and the problem."""


def load(
    path: str | os.PathLike[str] | None = None,
    context: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    service_account: str | os.PathLike[str] = SERVICE_ACCOUNT,
) -> Connection:
    """Load the connection with kubectl's search order: ``path``, the files in KUBECONFIG, ``~/.kube/config``, and last
    the service account of the pod."""
    if path is not None:
        return from_files([path], context, environ=environ)
    if listed := environ.get("KUBECONFIG"):
        # Listed files may be missing: kubectl creates them on its first write.
        files = [name for name in listed.split(os.pathsep) if name and Path(name).expanduser().exists()]
        if not files:
            raise KubeconfigError(f"none of the files in KUBECONFIG exists: {listed}")
        return from_files(files, context, environ=environ)
    if Path(DEFAULT_PATH).expanduser().exists():
        return from_files([DEFAULT_PATH], context, environ=environ)
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(environ=environ, service_account=service_account)
    raise KubeconfigError(f"no kubeconfig found: set KUBECONFIG, or create {DEFAULT_PATH}")


def from_files(
    paths: Iterable[str | os.PathLike[str]], context: str | None = None, *, environ: Mapping[str, str] = os.environ
) -> Connection:
    """Load the connection from several merged kubeconfigs. Earlier files take precedence."""
    merged: dict[str, Any] = {"clusters": [], "contexts": [], "users": [], "current-context": None}
    for path in paths:
        _merge(merged, read(Path(path).expanduser()))
    return _connection(merged, context, environ)


def from_document(document: Mapping[str, Any]) -> Connection:
    """Load the connection from a kubeconfig in memory, without environment variables or other files."""
    return _connection(document, None, {})


def in_cluster(
    *, environ: Mapping[str, str] = os.environ, service_account: str | os.PathLike[str] = SERVICE_ACCOUNT
) -> Connection:
    """Load the in-cluster connection of a pod. The token is reread when the kubelet replaces its file."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise KubeconfigError("not in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
    directory = Path(service_account)
    namespace = directory / "namespace"
    try:
        tls = client_tls(cafile=directory / "ca.crt")
        if not (directory / "token").is_file():
            raise FileNotFoundError(f"{directory / 'token'} does not exist")
        return Connection(
            server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            tls=tls,
            credentials=TokenFile(directory / "token"),
            namespace=namespace.read_text().strip() if namespace.exists() else "default",
        )
    except (OSError, ValueError) as error:
        raise KubeconfigError(f"the pod's service account cannot be used: {error}") from error


def read_document(path: Path) -> dict[str, Any]:
    """Read one kubeconfig as it is. Raises ``KubeconfigError``."""
    return _read_file(path)[0]


def _read_file(path: Path) -> tuple[dict[str, Any], bool]:
    """Return one kubeconfig as it is, and whether only this user and root can write the file."""
    try:
        with path.open() as file:
            status = os.fstat(file.fileno())
            config = _parse(file.read(), path)
    except OSError as error:
        raise KubeconfigError(f"cannot read the kubeconfig {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise KubeconfigError(f"the kubeconfig {path} is not text: {error}") from error
    if not isinstance(config, dict):
        raise KubeconfigError(f"{path} is not a kubeconfig")
    return config, status.st_uid in (0, os.geteuid()) and not status.st_mode & stat.S_IWOTH


def read(path: Path) -> dict[str, Any]:
    """Read one kubeconfig, check that its entries have names and content, and make its relative paths absolute. Exec
    plugins of a file that another user can write are marked as not to be run."""
    config, is_private = _read_file(path)
    folder = path.absolute().parent
    for kind, names in _PATHS.items():
        for entry in config.get(f"{kind}s") or ():
            described = entry.get(kind) if isinstance(entry, dict) and entry.get("name") else None
            if not isinstance(described, dict):
                raise KubeconfigError(f"the kubeconfig {path} has a {kind} without name or without content")
            for name in names:
                if described.get(name):
                    described[name] = str(folder / described[name])
            plugin = described.get("exec") or {}
            if os.sep in plugin.get("command", ""):
                plugin["command"] = str(folder / plugin["command"])
            if plugin and not is_private:
                plugin[_WRITABLE] = str(path)
    return config


def _parse(text: str, path: Path) -> Any:
    # A comment is all that a kubeconfig in JSON may have beside it: YAML allows both.
    document = text
    while document.startswith("#"):
        document = document.partition("\n")[2]
    try:
        return orjson.loads(document)
    except orjson.JSONDecodeError:
        import yaml

        try:
            return yaml.safe_load(text)
        except (yaml.YAMLError, ValueError) as error:
            raise KubeconfigError(f"the kubeconfig {path} is not YAML: {error}") from error


def _merge(merged: dict[str, Any], config: Mapping[str, Any]) -> None:
    for kind in ("clusters", "contexts", "users"):
        known = {entry["name"] for entry in merged[kind]}
        merged[kind] += [entry for entry in config.get(kind) or () if entry.get("name") not in known]
    merged["current-context"] = merged["current-context"] or config.get("current-context")


def _connection(config: Mapping[str, Any], name: str | None, environ: Mapping[str, str]) -> Connection:
    name = name or config["current-context"]
    if name is None:
        raise KubeconfigError("the kubeconfig cannot be used: no current context set")
    try:
        context = _named(config["contexts"], name)["context"]
    except KeyError:
        raise KubeconfigError(f"the kubeconfig cannot be used: context {name!r} not found") from None
    try:
        cluster = _named(config["clusters"], context.get("cluster"))["cluster"]
        user = _named(config["users"], context["user"])["user"] if context.get("user") else {}
    except KeyError as error:
        raise KubeconfigError(f"the context names the cluster or user {error}, which the kubeconfig lacks") from error
    try:
        server = _text(cluster, "server")
        return Connection(
            server=server,
            tls=_tls(cluster, user) if server.startswith("https:") else None,
            credentials=_credentials(cluster, user),
            namespace=_text(context, "namespace") or "default",
            proxy=_proxy(_text(cluster, "proxy-url"), server, environ),
            tls_server_name=_text(cluster, "tls-server-name") or None,
        )
    except (CredentialsError, OSError, ValueError) as error:
        raise KubeconfigError(f"the kubeconfig cannot be used: {error}") from error


def _text(section: Mapping[str, Any], key: str) -> str:
    """A field that is text; empty if it is missing."""
    value = section.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key} must be text, not {value!r}")
    return value or ""


def _decoded(section: Mapping[str, Any], key: str) -> bytes:
    # Strict decoding: data that decodes to nothing would silently select the system's CAs.
    return base64.b64decode("".join(_text(section, key).split()), validate=True)


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    """TLS context with the cluster's CA, by default the system's, and the user's client certificate."""
    data = _decoded(cluster, "certificate-authority-data").decode()
    file = _text(cluster, "certificate-authority")
    context = client_tls(cafile=None if data else file or None, cadata=data or None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate = _decoded(user, "client-certificate-data") or _text(user, "client-certificate")
    key = _decoded(user, "client-key-data") or _text(user, "client-key")
    if bool(certificate) != bool(key):
        raise ValueError("a client certificate and its key must be given together")
    if certificate:
        _load_certificate(context, certificate, key)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: bytes | str, key: bytes | str) -> None:
    """Load a certificate and its key, each a file or PEM data. OpenSSL reads files only, so data becomes a file for a
    moment, in memory and readable only for this user."""
    import tempfile

    with tempfile.TemporaryDirectory(
        prefix="sandpool-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None
    ) as place:

        def as_file(content: bytes | str, name: str) -> str:
            if isinstance(content, str):
                return content
            path = os.path.join(place, name)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
            return path

        context.load_cert_chain(as_file(certificate, "certificate"), as_file(key, "key"))


def _named(entries: Iterable[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """The entry with a name. Raises ``KeyError``."""
    for entry in entries:
        if entry["name"] == name:
            return entry
    raise KeyError(name)


def _credentials(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> Credentials:
    # As in kubectl, a token file takes precedence over a token because it may be newer.
    if file := _text(user, "tokenFile"):
        return TokenFile(file)
    if token := _text(user, "token"):
        return Fixed.token(token)
    if name := _text(user, "username"):
        return Fixed.password(name, _text(user, "password"))
    if provider := user.get("auth-provider"):
        name = provider.get("name")
        raise ValueError(f"auth-provider {name!r} is not supported (nor by Kubernetes any more): use an exec plugin")
    if described := user.get("exec"):
        return _plugin(cluster, described)
    return ANONYMOUS


def _plugin(cluster: Mapping[str, Any], described: Mapping[str, Any]) -> Credentials:
    from sandpool.kube.execplugin import ExecPlugin, Plugin

    command, version = _text(described, "command"), _text(described, "apiVersion")
    if not command or not version:
        raise ValueError("an exec plugin needs command and apiVersion")
    if file := described.get(_WRITABLE):
        raise ValueError(
            f"the exec plugin {command} is not run: another user can write {file}; use a copy of the file of your own"
        )
    if described.get("interactiveMode") == "Always":
        raise ValueError(f"the exec plugin {command} needs a terminal")
    plugin = Plugin(
        command=command,
        api_version=version,
        args=tuple(described.get("args") or ()),
        env={_text(variable, "name"): _text(variable, "value") for variable in described.get("env") or ()},
        install_hint=_text(described, "installHint"),
        cluster=_for_plugin(cluster) if described.get("provideClusterInfo") else None,
    )
    return ExecPlugin(plugin, lambda certificate, key: _tls(cluster, _with_certificate(certificate, key)))


def _with_certificate(certificate: str, key: str) -> dict[str, Any]:
    return {
        "client-certificate-data": base64.b64encode(certificate.encode()).decode(),
        "client-key-data": base64.b64encode(key.encode()).decode(),
    }


def _for_plugin(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """The cluster section of KUBERNETES_EXEC_INFO."""
    names = ("server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url")
    fields = {name: cluster[name] for name in names if name in cluster}
    if "certificate-authority" in cluster and "certificate-authority-data" not in fields:
        content = Path(cluster["certificate-authority"]).read_bytes()
        fields["certificate-authority-data"] = base64.b64encode(content).decode()
    for extension in cluster.get("extensions") or ():
        if extension.get("name") == "client.authentication.k8s.io/exec":
            fields["config"] = extension.get("extension")
    return fields


def _proxy(configured: str, server: str, environ: Mapping[str, str]) -> str | None:
    """The proxy of the cluster entry, else of the environment (HTTPS_PROXY, NO_PROXY; not for loopback)."""
    url = urlsplit(server)
    proxy: str | None = configured
    if not proxy and url.hostname and not is_loopback(url.hostname):
        import urllib.request  # takes as long to import as everything above

        lower = {name.lower(): value for name, value in environ.items()}
        if not urllib.request.proxy_bypass_environment(url.hostname, {"no": lower.get("no_proxy", "")}):  # type: ignore[attr-defined]
            proxy = lower.get(f"{url.scheme}_proxy")
    if proxy and urlsplit(proxy).scheme not in ("http", "https"):
        raise ValueError(f"proxy {proxy} is not supported: only http:// and https:// proxies are")
    return proxy or None
