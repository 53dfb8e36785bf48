"""A real Kubernetes control plane on loopback: etcd, kube-apiserver and optionally kube-controller-manager.

The embedded API server is compared with it, in behaviour and in speed. All its files are in one temporary directory,
which is removed when it stops. There are no nodes and no scheduler: objects are stored, watched, validated and
garbage-collected, and pods stay Pending.
"""

from __future__ import annotations

import base64
import http.client
import json
import secrets
import shutil
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from sandpool.bench.child_process import Component, ReservedPort, Rig
from sandpool.server.serving.pki import Authority
from tests.support.assets import Assets, MissingAssets, find_assets
from tests.support.users import ADMIN, token_file

# What the API alone does not do but a client sees: dependants are collected, namespaces empty themselves, every
# namespace gets its default service account, and the roles view, edit and admin get their rules.
_CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
)
#: Further controllers, for nodes that run pods: they remove the taint of a new Node, and volumes that no pod uses.
NODE_CONTROLLERS: Final = (
    "node-lifecycle-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
)
#: Scales what a HorizontalPodAutoscaler names, without metrics.
AUTOSCALER: Final = "horizontal-pod-autoscaler-controller"


def kubelet_flags(authority: Authority) -> tuple[str, ...]:
    """Return the flags with which kube-apiserver connects to kubelets that trust clients of ``authority``."""
    identity = authority.kubelet_client()
    return (
        f"--client-ca-file={identity.certificate.with_name('ca.crt')}",
        f"--kubelet-client-certificate={identity.certificate}",
        f"--kubelet-client-key={identity.key}",
        "--kubelet-preferred-address-types=InternalIP",
    )


#: The common name of kube-apiserver's certificate towards aggregated API servers.
PROXY = "front-proxy-client"


def aggregation_flags(authority: Authority) -> tuple[str, ...]:
    """Return the flags with which kube-apiserver has an aggregation layer, as kubeadm sets them."""
    identity = authority.client(PROXY, PROXY)
    return (
        f"--requestheader-client-ca-file={identity.certificate.with_name('ca.crt')}",
        f"--requestheader-allowed-names={PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-uid-headers=X-Remote-Uid",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={identity.certificate}",
        f"--proxy-client-key-file={identity.key}",
    )


class ControlPlaneFailed(Exception):
    """A component ended or did not become ready in time. The message has the tails of the logs."""


class ControlPlane(Rig):
    """Start with ``start`` or as a context manager, ``with`` or ``async with``; ``stop`` leaves nothing behind.

    ``users`` are further identities by name with their groups; each gets a token of its own in ``tokens``.
    ``fsync=False`` lets etcd lose acknowledged writes on a crash of the machine and makes a slow disk bearable in
    tests; leave it on for measurements. ``audit`` names the users whose requests are recorded in ``audit_log``, a line
    of JSON for each that has been answered. ``controllers`` are run by kube-controller-manager besides the usual ones.
    """

    def __init__(
        self,
        assets: Assets | None = None,
        *,
        controller_manager: bool = True,
        fsync: bool = True,
        users: Mapping[str, tuple[str, ...]] | None = None,
        audit: Sequence[str] = (),
        apiserver_flags: Sequence[str] = (),
        controllers: Sequence[str] = (),
    ) -> None:
        self.assets = assets or find_assets()
        self.controller_manager_wanted = controller_manager
        if controller_manager and not self.assets.has("kube-controller-manager"):
            raise MissingAssets(f"no kube-controller-manager in {self.assets.directory}")
        self.fsync = fsync
        self.users: dict[str, tuple[str, ...]] = {ADMIN: ("system:masters",), **(users or {})}
        self.tokens = {user: secrets.token_urlsafe(24) for user in self.users}
        self.audit = audit
        self.apiserver_flags = apiserver_flags
        self.controllers = (*_CONTROLLERS, *controllers)
        self.components: list[Component] = []

    # Starting and stopping

    def start(self, within: float = 120.0) -> Self:
        """Start everything and return when the API answers ready. Raises ControlPlaneFailed, having cleaned up."""
        deadline = time.monotonic() + within
        self.directory = Path(tempfile.mkdtemp(prefix="sandpool-control-plane-"))
        self._etcd_port, self._api_port = ReservedPort(), ReservedPort()
        try:
            self._write_files()
            self.etcd = self._component("etcd", self._etcd_command())
            self.apiserver = self._component("kube-apiserver", self._apiserver_command())
            self.etcd.start()
            self._await(self._etcd_ready, "etcd", deadline)
            self.apiserver.start()
            self._await(self._api_ready, "kube-apiserver", deadline)
            self.kubeconfig = self.write_kubeconfig(self.directory / "kubeconfig")
            if self.controller_manager_wanted:
                self.controller_manager = self._component("kube-controller-manager", self._controller_command())
                self.controller_manager.start()
                self._await(self._controllers_ready, "kube-controller-manager", deadline)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        for component in reversed(self.components):
            component.stop()
        self.components.clear()
        self._etcd_port.close()
        self._api_port.close()
        shutil.rmtree(self.directory)

    def restart(self, component: Component, *, crash: bool = False, within: float = 60.0) -> None:
        """Stop one component, gracefully or with SIGKILL, and start it again. Returns when the API is ready."""
        if crash:
            component.kill()
        else:
            component.stop()
        component.start()
        self.wait_ready(within)

    def wait_ready(self, within: float = 60.0) -> None:
        self._await(self._api_ready, "kube-apiserver", time.monotonic() + within)

    # Reaching it

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._api_port.number}"

    @property
    def ca(self) -> str:
        """The certificates to trust, as PEM. kube-apiserver generated them, and its file ends with the authority."""
        return (self.directory / "certificates" / "apiserver.crt").read_text()

    @property
    def audit_log(self) -> Path:
        return self.directory / "audit.log"

    def write_kubeconfig(
        self, path: Path, user: str = ADMIN, namespace: str = "default", *, token: str = "", server: str = ""
    ) -> Path:
        """Write a kubeconfig for ``user``, as JSON, which every kubeconfig reader accepts as YAML.

        A user who is not among ``users`` needs a ``token``. ``server`` is another address of the API.
        """
        authority = base64.b64encode(self.ca.encode()).decode()
        cluster = {"server": server or self.url, "certificate-authority-data": authority}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "control-plane", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token or self.tokens[user]}}],
            "contexts": [
                {"name": user, "context": {"cluster": "control-plane", "user": user, "namespace": namespace}},
            ],
            "current-context": user,
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(config, indent=2))
        return path

    def compact(self) -> None:
        """Make etcd drop its history, which expires every continue token and old resourceVersion."""
        header = self._etcd_call("/v3/kv/range", {"key": base64.b64encode(b"\0").decode()})["header"]
        self._etcd_call("/v3/kv/compaction", {"revision": header["revision"], "physical": True})

    # Files and command lines

    def _write_files(self) -> None:
        (self.directory / "certificates").mkdir()
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (self.directory / "service-account.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        (self.directory / "tokens.csv").write_text(token_file(self.tokens, self.users))
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived", "ResponseStarted"],
            "rules": [{"level": "Metadata", "users": [*self.audit]}, {"level": "None"}],
        }
        (self.directory / "audit-policy.json").write_text(json.dumps(policy))

    def _component(self, name: str, command: Sequence[str | Path]) -> Component:
        component = Component(name, command, self.directory / f"{name}.log")
        self.components.append(component)
        return component

    def _etcd_command(self) -> list[str | Path]:
        url = f"http://127.0.0.1:{self._etcd_port.number}"
        command: list[str | Path] = [
            self.assets.binary("etcd"),
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            "--listen-peer-urls=http://127.0.0.1:0",  # a single member: no other process needs the port
            "--socket-reuse-port",
            "--log-level=warn",
        ]
        if not self.fsync:
            command.append("--unsafe-no-fsync")
        return command

    def _apiserver_command(self) -> list[str | Path]:
        key = self.directory / "service-account.key"
        return [
            self.assets.binary("kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port.number}",
            f"--cert-dir={self.directory / 'certificates'}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._api_port.number}",
            "--permit-port-sharing",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            "--anonymous-auth=false",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            # Accept pods unchanged: add no token volumes, and do not wait for the default service account.
            "--disable-admission-plugins=ServiceAccount",
            *(self._audit_flags() if self.audit else ()),
            *self.apiserver_flags,
        ]

    def _audit_flags(self) -> list[str]:
        return [
            f"--audit-policy-file={self.directory / 'audit-policy.json'}",
            f"--audit-log-path={self.audit_log}",
            "--audit-log-mode=blocking",  # a response implies that its line is in the file
        ]

    def _controller_command(self) -> list[str | Path]:
        return [
            self.assets.binary("kube-controller-manager"),
            f"--kubeconfig={self.kubeconfig}",
            f"--controllers={','.join(self.controllers)}",
            f"--service-account-private-key-file={self.directory / 'service-account.key'}",
            "--leader-elect=false",
            "--secure-port=0",
            # Tests create and delete hundreds of objects; the default of 20 requests per second would slow them down.
            "--kube-api-qps=500",
            "--kube-api-burst=1000",
            *(("--horizontal-pod-autoscaler-sync-period=1s",) if AUTOSCALER in self.controllers else ()),
        ]

    # Readiness

    def _await(self, ready: Callable[[], bool], name: str, deadline: float) -> None:
        while True:
            dead = [component.name for component in self.components if not component.running and component.log.exists()]
            if dead:
                raise ControlPlaneFailed(f"{', '.join(dead)} ended while starting {name}\n{self._tails()}")
            if ready():
                return
            if time.monotonic() > deadline:
                raise ControlPlaneFailed(f"{name} did not become ready in time\n{self._tails()}")
            time.sleep(0.1)

    def _etcd_ready(self) -> bool:
        try:
            return bool(self._etcd_call("/v3/maintenance/status", {}))
        except (OSError, http.client.HTTPException):
            return False

    def _api_ready(self) -> bool:
        try:
            return self._api_get("/readyz") is not None
        except (OSError, http.client.HTTPException):
            return False

    def _controllers_ready(self) -> bool:
        """The service account controller has acted, so the controllers run. The garbage collector needs a moment more
        to fill its graph; its tests poll for their results."""
        return self._api_get("/api/v1/namespaces/default/serviceaccounts/default") is not None

    def _api_get(self, path: str) -> bytes | None:
        context = ssl.create_default_context(cadata=self.ca)
        connection = http.client.HTTPSConnection("127.0.0.1", self._api_port.number, timeout=5, context=context)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self.tokens[ADMIN]}"})
            answer = connection.getresponse()
            body = answer.read()
            return body if answer.status == 200 else None
        finally:
            connection.close()

    def _etcd_call(self, path: str, body: Mapping[str, object]) -> dict[str, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self._etcd_port.number, timeout=5)
        try:
            connection.request("POST", path, json.dumps(body))
            answer: dict[str, dict[str, str]] = json.loads(connection.getresponse().read())
            return answer
        finally:
            connection.close()

    def _tails(self) -> str:
        return "\n".join(f"--- {component.name}\n{component.tail()}" for component in self.components)
