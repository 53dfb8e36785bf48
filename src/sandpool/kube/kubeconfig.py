"""Loads the connection from kubeconfig files or from the service account of the pod.

lightkube parses the file, selects the context and loads client certificates. It was chosen over
``kubernetes_asyncio`` (48 MB on disk, 38 MB and 0.3 s to import; lightkube 6 MB and 0.1 s) and is imported only when a
kubeconfig is read. This module and ``kube.execplugin`` add the features it lacks: several files in KUBECONFIG,
proxy-url, tls-server-name, exec plugins of the v1 API, exec plugins that return certificates, and credentials that
expire.
"""

from __future__ import annotations

import base64
import os
import ssl
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import yaml

from sandpool.kube.connection import Connection, is_loopback
from sandpool.kube.credentials import ANONYMOUS, Credentials, CredentialsError, Fixed, TokenFile
from sandpool.kube.execplugin import ExecPlugin, Plugin

if TYPE_CHECKING:
    from lightkube.config.kubeconfig import SingleConfig
    from lightkube.config.models import User

DEFAULT_PATH = "~/.kube/config"
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"

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
        _merge(merged, _read(Path(path).expanduser()))
    return _connection(merged, context, environ)


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
        tls = ssl.create_default_context(cafile=directory / "ca.crt")
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


def _read(path: Path) -> dict[str, Any]:
    """Read one kubeconfig and make its relative paths absolute."""
    try:
        config = yaml.safe_load(path.read_text())
    except OSError as error:
        raise KubeconfigError(f"cannot read the kubeconfig {path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise KubeconfigError(f"the kubeconfig {path} is not YAML: {error}") from error
    if not isinstance(config, dict):
        raise KubeconfigError(f"{path} is not a kubeconfig")
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
    return config


def _merge(merged: dict[str, Any], config: Mapping[str, Any]) -> None:
    for kind in ("clusters", "contexts", "users"):
        known = {entry["name"] for entry in merged[kind]}
        merged[kind] += [entry for entry in config.get(kind) or () if entry.get("name") not in known]
    merged["current-context"] = merged["current-context"] or config.get("current-context")


def _connection(config: Mapping[str, Any], context: str | None, environ: Mapping[str, str]) -> Connection:
    import msgspec
    from lightkube.config.kubeconfig import KubeConfig
    from lightkube.config.models import User
    from lightkube.core.exceptions import ConfigError

    try:
        chosen = KubeConfig.from_dict(dict(config)).get(context or config["current-context"])
        assert chosen is not None
        server, cluster = chosen.cluster.server, _named(config["clusters"], chosen.context.cluster)["cluster"]
        return Connection(
            server=server,
            tls=_tls(chosen, chosen.user or User()) if server.startswith("https:") else None,
            credentials=_credentials(chosen, config),
            namespace=chosen.namespace,
            proxy=_proxy(cluster.get("proxy-url"), server, environ),
            tls_server_name=cluster.get("tls-server-name"),
        )
    except KeyError as error:
        raise KubeconfigError(f"the context names the cluster or user {error}, which the kubeconfig lacks") from error
    except (ConfigError, CredentialsError, msgspec.ValidationError, OSError, ValueError) as error:
        raise KubeconfigError(f"the kubeconfig cannot be used: {error}") from error


def _tls(chosen: SingleConfig, user: User) -> ssl.SSLContext:
    """TLS context with the cluster's CA, by default the system's, and the user's client certificate."""
    from lightkube.config.client_adapter import user_cert

    cluster = chosen.cluster
    authority = cluster.certificate_auth_data
    if authority:
        # Strict decoding: data that decodes to nothing would silently select the system's CAs.
        authority = base64.b64decode("".join(authority.split()), validate=True).decode()
    context = ssl.create_default_context(cafile=None if authority else cluster.certificate_auth, cadata=authority)
    if cluster.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if bool(user.client_cert or user.client_cert_data) != bool(user.client_key or user.client_key_data):
        raise ValueError("a client certificate and its key must be given together")
    if certificate := user_cert(user, chosen.abs_file):
        context.load_cert_chain(*certificate)
    return context


def _named(entries: Iterable[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _credentials(chosen: SingleConfig, config: Mapping[str, Any]) -> Credentials:
    user = chosen.user
    if user is None:
        return ANONYMOUS
    # As in kubectl, a token file takes precedence over a token because it may be newer.
    if user.token_file:
        return TokenFile(user.token_file)
    if user.token:
        return Fixed.token(user.token)
    if user.username:
        return Fixed.password(user.username, user.password or "")
    if user.auth_provider:
        name = user.auth_provider.get("name")
        raise ValueError(f"auth-provider {name!r} is not supported (nor by Kubernetes any more): use an exec plugin")
    if user.exec:
        described = _named(config["users"], chosen.context.user or "")["user"]["exec"]
        if described.get("interactiveMode") == "Always":
            raise ValueError(f"the exec plugin {user.exec.command} needs a terminal")
        cluster = _named(config["clusters"], chosen.context.cluster)["cluster"]
        plugin = Plugin(
            command=user.exec.command,
            api_version=user.exec.apiVersion,
            args=tuple(user.exec.args or ()),
            env={variable.name: variable.value for variable in user.exec.env or ()},
            install_hint=user.exec.installHint or "",
            cluster=_for_plugin(cluster) if described.get("provideClusterInfo") else None,
        )
        return ExecPlugin(plugin, lambda certificate, key: _tls(chosen, _with_certificate(certificate, key)))
    return ANONYMOUS


def _with_certificate(certificate: str, key: str) -> User:
    from lightkube.config.models import User

    return User(
        client_cert_data=base64.b64encode(certificate.encode()).decode(),
        client_key_data=base64.b64encode(key.encode()).decode(),
    )


def _for_plugin(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """The cluster section of KUBERNETES_EXEC_INFO."""
    names = ("server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url")
    told = {name: cluster[name] for name in names if name in cluster}
    if "certificate-authority" in cluster and "certificate-authority-data" not in told:
        content = Path(cluster["certificate-authority"]).read_bytes()
        told["certificate-authority-data"] = base64.b64encode(content).decode()
    for extension in cluster.get("extensions") or ():
        if extension.get("name") == "client.authentication.k8s.io/exec":
            told["config"] = extension.get("extension")
    return told


def _proxy(configured: str | None, server: str, environ: Mapping[str, str]) -> str | None:
    """The proxy of the cluster entry, else of the environment (HTTPS_PROXY, NO_PROXY; not for loopback)."""
    url = urlsplit(server)
    proxy = configured
    if not proxy and url.hostname and not is_loopback(url.hostname):
        lower = {name.lower(): value for name, value in environ.items()}
        if not urllib.request.proxy_bypass_environment(url.hostname, {"no": lower.get("no_proxy", "")}):  # type: ignore[attr-defined]
            proxy = lower.get(f"{url.scheme}_proxy")
    if proxy and urlsplit(proxy).scheme not in ("http", "https"):
        raise ValueError(f"proxy {proxy} is not supported: only http:// and https:// proxies are")
    return proxy or None
