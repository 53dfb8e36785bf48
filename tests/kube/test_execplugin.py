"""Exec plugins: real programs that print an ExecCredential."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from sandpool.kube.credentials import CredentialsError
from sandpool.kube.execplugin import ExecPlugin, Plugin

V1 = "client.authentication.k8s.io/v1"
# Notes every run in the file named by its first argument, and then does what the test says.
PRELUDE = (
    "import json, os, sys, time; open(sys.argv[1], 'a').write('ran\\n'); runs = len(open(sys.argv[1]).readlines())\n"
)


class Script:
    """A plugin made of a few lines of Python; counts its runs."""

    def __init__(self, folder: Path, code: str) -> None:
        self.log = folder / "runs"
        self.args = ("-S", "-c", PRELUDE + code, str(self.log))

    @property
    def runs(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def plugin(self, **options: Any) -> Plugin:
        return Plugin(command=sys.executable, api_version=V1, args=self.args, **options)


def gives(status: str) -> str:
    """Code that prints a credential; ``status`` is a Python expression, in which ``runs`` counts from 1."""
    return f"print(json.dumps(dict(apiVersion={V1!r}, kind='ExecCredential', status={status})))"


def no_tls(certificate: str, key: str) -> ssl.SSLContext:
    raise AssertionError("no certificate was given")


async def test_token_is_cached_and_the_plugin_runs_once(tmp_path: Path) -> None:
    script = Script(tmp_path, gives("dict(token=f't{runs}')"))
    credentials = ExecPlugin(script.plugin(), no_tls)
    grants = await asyncio.gather(*(credentials.auth() for _ in range(10)))
    assert {auth.authorization for auth in grants} == {"Bearer t1"}
    assert script.runs == 1


async def test_expired_credentials_are_renewed_in_time(tmp_path: Path) -> None:
    script = Script(tmp_path, gives("dict(token=f't{runs}', expirationTimestamp=f'2026-01-01T00:0{runs}:00Z')"))
    now = 1767225600.0  # 2026-01-01T00:00:00Z
    credentials = ExecPlugin(script.plugin(), no_tls, now=lambda: now)
    assert (await credentials.auth()).authorization == "Bearer t1"
    now += 49
    assert (await credentials.auth()).authorization == "Bearer t1"
    now += 1
    assert (await credentials.auth()).authorization == "Bearer t2"
    assert script.runs == 2


async def test_rejected_credentials_are_renewed_once_for_concurrent_requests(tmp_path: Path) -> None:
    script = Script(tmp_path, gives("dict(token=f't{runs}')"))
    credentials = ExecPlugin(script.plugin(), no_tls)
    refused = await credentials.auth()
    assert await asyncio.gather(*(credentials.renew(refused) for _ in range(5))) == [True] * 5
    assert (await credentials.auth()).authorization == "Bearer t2"
    assert script.runs == 2


async def test_client_certificate_becomes_a_tls_context(tmp_path: Path) -> None:
    given = []
    context = ssl.create_default_context()

    def tls(certificate: str, key: str) -> ssl.SSLContext:
        given.append((certificate, key))
        return context

    script = Script(tmp_path, gives("dict(clientCertificateData='CERT', clientKeyData='KEY')"))
    auth = await ExecPlugin(script.plugin(), tls).auth()
    assert (auth.authorization, auth.tls) == (None, context)
    assert given == [("CERT", "KEY")]


async def test_plugin_gets_its_environment_and_the_cluster_info(tmp_path: Path) -> None:
    code = gives("dict(token=json.dumps([os.environ['EXTRA'], os.environ['KUBERNETES_EXEC_INFO']]))")
    plugin = Script(tmp_path, code).plugin(env={"EXTRA": "x"}, cluster={"server": "https://s"})
    authorization = (await ExecPlugin(plugin, no_tls).auth()).authorization
    assert authorization is not None
    extra, info = json.loads(authorization.removeprefix("Bearer "))
    assert extra == "x"
    assert json.loads(info) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "https://s"}},
    }


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("sys.exit('please log in')", "exited with 1: please log in"),
        ("print('secret')", "did not print JSON"),
        ("print('[]')", "did not print an ExecCredential"),
        (gives("{}").replace(V1, "other/v1"), "answered in other/v1, the kubeconfig expects"),
        (gives("None"), "neither a token nor a certificate with its key"),
        (gives("dict(clientCertificateData='CERT')"), "neither a token nor a certificate with its key"),
        (gives("dict(token='t', expirationTimestamp='tomorrow')"), "bad expirationTimestamp: tomorrow"),
    ],
)
async def test_failing_plugin_is_reported_with_its_output(tmp_path: Path, code: str, message: str) -> None:
    with pytest.raises(CredentialsError, match=message) as raised:
        await ExecPlugin(Script(tmp_path, code).plugin(), no_tls).auth()
    assert "secret" not in str(raised.value)


async def test_hanging_plugin_is_killed(tmp_path: Path) -> None:
    script = Script(tmp_path, "time.sleep(1000)")
    with pytest.raises(CredentialsError, match="gave no credentials within"):
        await ExecPlugin(script.plugin(), no_tls, timeout=0.05).auth()


async def test_missing_plugin_is_reported_with_its_install_hint() -> None:
    plugin = Plugin("/nowhere/plugin", V1, install_hint="Install it with apt.")
    with pytest.raises(
        CredentialsError, match=r"cannot run the exec plugin /nowhere/plugin(.|\n)*Install it with apt\."
    ):
        await ExecPlugin(plugin, no_tls).auth()


def test_unknown_plugin_version_is_rejected() -> None:
    with pytest.raises(CredentialsError, match=r"only .*v1 and .*v1beta1 are supported"):
        ExecPlugin(Plugin("plugin", "client.authentication.k8s.io/v1alpha1"), no_tls)
