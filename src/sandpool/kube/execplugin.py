"""Credentials from an exec plugin: a program that prints an ExecCredential. Kubeconfigs of cloud providers use them.

https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson

from sandpool.kube.credentials import CredentialsError, RequestAuth

API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
# Credentials are renewed this long before they expire, so that they are still valid at the server.
_LEEWAY_SECONDS = 10.0
# A plugin may call an identity provider over the network.
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Plugin:
    """The plugin section of a kubeconfig user."""

    command: str
    api_version: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    install_hint: str = ""
    cluster: Mapping[str, Any] | None = None  # passed to the plugin if the kubeconfig sets provideClusterInfo


class ExecPlugin:
    """Runs the plugin at first use, when the credentials expire and when the server rejects them.

    Concurrent requests share one run of the plugin. ``tls`` builds the TLS context for a client certificate
    (certificate, key; PEM) that the plugin may return instead of a token.
    """

    def __init__(
        self,
        plugin: Plugin,
        tls: Callable[[str, str], ssl.SSLContext],
        *,
        now: Callable[[], float] = time.time,
        timeout: float = _TIMEOUT_SECONDS,
    ) -> None:
        if plugin.api_version not in API_VERSIONS:
            raise CredentialsError(
                f"the exec plugin {plugin.command} uses {plugin.api_version}; "
                f"only {' and '.join(API_VERSIONS)} are supported"
            )
        self.plugin = plugin
        self.tls = tls
        self.now = now
        self.timeout = timeout
        self._auth: RequestAuth | None = None
        self._expires: float | None = None
        self._running = asyncio.Lock()

    async def auth(self) -> RequestAuth:
        async with self._running:
            if self._auth is None or self._expired():
                self._auth, self._expires = self._read(await self._run())
            return self._auth

    async def renew(self, refused: RequestAuth) -> bool:
        async with self._running:
            # Another rejected request may already have renewed the credentials.
            if self._auth is refused:
                self._auth = None
        await self.auth()
        return True

    def _expired(self) -> bool:
        return self._expires is not None and self.now() >= self._expires - _LEEWAY_SECONDS

    async def _run(self) -> bytes:
        plugin = self.plugin
        try:
            process = await asyncio.create_subprocess_exec(
                plugin.command,
                *plugin.args,
                env={**os.environ, **plugin.env, "KUBERNETES_EXEC_INFO": self._info()},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            hint = f"\n{plugin.install_hint}" if plugin.install_hint else ""
            raise CredentialsError(f"cannot run the exec plugin {plugin.command}: {error}{hint}") from error
        try:
            async with asyncio.timeout(self.timeout):
                output, complaint = await process.communicate()
        except TimeoutError:
            raise CredentialsError(
                f"the exec plugin {plugin.command} gave no credentials within {self.timeout:g} s"
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            reason = complaint.decode(errors="replace").strip()
            raise CredentialsError(f"the exec plugin {plugin.command} exited with {process.returncode}: {reason}")
        return output

    def _info(self) -> str:
        spec: dict[str, Any] = {"interactive": False}
        if self.plugin.cluster is not None:
            spec["cluster"] = self.plugin.cluster
        return orjson.dumps({"apiVersion": self.plugin.api_version, "kind": "ExecCredential", "spec": spec}).decode()

    def _read(self, output: bytes) -> tuple[RequestAuth, float | None]:
        """Parse the credentials and their expiry. The output is secret and must not appear in messages."""
        command = self.plugin.command
        try:
            answer = orjson.loads(output)
        except orjson.JSONDecodeError as error:
            raise CredentialsError(f"the exec plugin {command} did not print JSON: {error.msg}") from None
        if not isinstance(answer, dict) or answer.get("kind") != "ExecCredential":
            raise CredentialsError(f"the exec plugin {command} did not print an ExecCredential")
        if answer.get("apiVersion") != self.plugin.api_version:
            raise CredentialsError(
                f"the exec plugin {command} answered in {answer.get('apiVersion')}, "
                f"the kubeconfig expects {self.plugin.api_version}"
            )
        status = answer.get("status") or {}
        token, certificate, key = (
            status.get(name) or "" for name in ("token", "clientCertificateData", "clientKeyData")
        )
        if bool(certificate) != bool(key) or not (token or certificate):
            raise CredentialsError(f"the exec plugin {command} gave neither a token nor a certificate with its key")
        tls = self.tls(certificate, key) if certificate else None
        return RequestAuth(f"Bearer {token}" if token else None, tls), self._expiry(status.get("expirationTimestamp"))

    def _expiry(self, timestamp: str | None) -> float | None:
        if not timestamp:
            return None
        try:
            return datetime.fromisoformat(timestamp).timestamp()
        except ValueError:
            raise CredentialsError(
                f"the exec plugin {self.plugin.command} gave a bad expirationTimestamp: {timestamp}"
            ) from None
