"""The lifecycle of sandboxes as a client of the SDK sees it."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sandpool.bench.sdk_process import SdkProcess, Speaker
from tests.support import sdk_scripts
from tests.support.private_network import PrivateHome

pytestmark = pytest.mark.isolation


@pytest.fixture(scope="module")
def speak(home: PrivateHome, either: SdkProcess) -> Speaker:
    config = {"class": "SandboxDirectConnectionConfig", "api_url": home.router}
    return Speaker(either, config)


def test_existing_claim_is_used(speak: Speaker) -> None:
    speak(sdk_scripts.adopts_what_is_there, f"named-{'async' if speak.process.asynchronous else 'sync'}")


def test_env_of_the_client_is_set(speak: Speaker) -> None:
    speak(sdk_scripts.brings_variables)


def test_env_of_the_client_is_set_in_a_warm_sandbox(home: PrivateHome, speak: Speaker) -> None:
    home.kubectl("wait", "--for=jsonpath={.status.readyReplicas}=1", "sandboxwarmpool/late", "--timeout=120s")
    speak(sdk_scripts.brings_variables_to_a_warm_sandbox)


def test_volumes_of_the_client_are_mounted(home: PrivateHome, speak: Speaker) -> None:
    claim = speak(sdk_scripts.brings_volumes)
    sandbox = json.loads(home.kubectl("get", "sandboxclaim", claim, "-o", "json"))["status"]["sandbox"]["name"]
    disk = json.loads(home.kubectl("get", "pvc", f"work-{sandbox}", "-o", "json"))
    assert disk["spec"]["resources"]["requests"]["storage"] == "3Mi"
    assert disk["status"]["phase"] == "Bound"
    home.kubectl("delete", "sandboxclaim", claim)
    home.kubectl("wait", "--for=delete", f"pvc/work-{sandbox}", "--timeout=30s")


def test_errors_are_raised_at_once(speak: Speaker) -> None:
    speak(sdk_scripts.is_told_at_once)


def test_sandbox_that_expires_while_it_is_awaited_is_reported(home: PrivateHome, speak: Speaker) -> None:
    name = f"expiring-{'async' if speak.process.asynchronous else 'sync'}"

    def script(sdk: Any, name: str) -> None:
        import time

        began = time.monotonic()
        create = sdk.client.create_sandbox
        error = sdk.fails("SandboxClaimFailedError", create, "never", claim_name=name, sandbox_ready_timeout=60)
        assert "terminal reason SandboxExpired" in str(error), error
        assert time.monotonic() - began < 30

    def expire() -> None:
        end = time.monotonic() + 30
        while f"/{name}\n" not in home.kubectl("get", "sandboxes", "-o", "name"):
            assert time.monotonic() < end
        past = '{"spec":{"shutdownTime":"2020-01-01T00:00:00Z","shutdownPolicy":"Retain"}}'
        home.kubectl("patch", "sandbox", name, "--type=merge", "-p", past)

    with ThreadPoolExecutor(1) as others:
        expiring = others.submit(expire)
        speak(script, name)
        expiring.result()
    home.kubectl("delete", "sandboxclaim", name)


def test_expired_sandbox_is_reported(speak: Speaker) -> None:
    speak(sdk_scripts.expires)


def test_sandbox_is_suspended_and_resumed(home: PrivateHome, speak: Speaker) -> None:
    def begin(sdk: Any) -> list[str]:
        sdk.box = sdk.client.create_sandbox("python")
        assert sdk.box.commands.run("echo awake").stdout == "awake\n"
        return [sdk.box.claim_name, sdk.box.sandbox_id]

    def while_asleep(sdk: Any) -> None:
        import time

        began = time.monotonic()
        error = sdk.fails("SandboxRequestError", sdk.box.commands.run, "echo asleep")
        assert error.status_code == 409, error
        assert "is suspended" in error.response.text, error.response.text
        # What does no harm when done twice, the SDK would try again for a quarter of a minute after a 503.
        error = sdk.fails("SandboxRequestError", sdk.box.files.read, "file")
        assert error.status_code == 409, error
        assert time.monotonic() - began < 5

    def when_awake(sdk: Any) -> None:
        import time

        began = time.monotonic()
        assert sdk.box.commands.run("echo again").stdout == "again\n"
        assert time.monotonic() - began < 1
        sdk.box.terminate()

    _, sandbox = speak(begin)
    home.kubectl("patch", "sandbox", sandbox, "--type=merge", "-p", '{"spec":{"operatingMode":"Suspended"}}')
    home.kubectl("wait", f"sandbox/{sandbox}", "--for=condition=Suspended", "--timeout=30s")
    speak(while_asleep)
    home.kubectl("patch", "sandbox", sandbox, "--type=merge", "-p", '{"spec":{"operatingMode":"Running"}}')
    home.kubectl("wait", f"sandbox/{sandbox}", "--for=condition=Ready", "--timeout=30s")
    speak(when_awake)


def test_deleted_sandbox_is_reported(home: PrivateHome, speak: Speaker) -> None:
    def begin(sdk: Any) -> list[str]:
        sdk.box = sdk.client.create_sandbox("python")
        sdk.box.files.write("file", b"content")
        return [sdk.box.claim_name, sdk.box.sandbox_id]

    def afterwards(sdk: Any) -> None:
        import time

        began = time.monotonic()
        error = sdk.fails("SandboxRequestError", sdk.box.commands.run, "echo gone")
        assert error.status_code == 404 and "not found" in error.response.text, error
        error = sdk.fails("SandboxRequestError", sdk.box.files.read, "file")
        assert error.status_code == 404, error
        assert time.monotonic() - began < 5
        assert sdk.box.status()[0] == "SandboxNotFound"
        sdk.box.close_connection()

    claim, sandbox = speak(begin)
    home.kubectl("delete", "sandboxclaim", claim)
    home.kubectl("wait", "--for=delete", f"sandbox/{sandbox}", "--timeout=30s")
    speak(afterwards)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_claims_are_deleted_when_the_program_ends(home: PrivateHome, asynchronous: bool) -> None:
    def script(sdk: Any) -> str:
        sdk.forgetful = sdk.connected(sdk.config, cleanup=True)
        name: str = sdk.forgetful.create_sandbox("python").claim_name
        return name

    config = {"class": "SandboxDirectConnectionConfig", "api_url": home.router}
    process = home.sdk(asynchronous=asynchronous)
    claim = Speaker(process, config)(script)
    assert claim in home.kubectl("get", "sandboxclaims")
    process.stop()
    assert claim not in home.kubectl("get", "sandboxclaims")


def test_all_sandboxes_of_a_client_are_deleted_together(home: PrivateHome, speak: Speaker) -> None:
    def script(sdk: Any) -> Any:
        mine = sdk.connected(sdk.config)
        names = [mine.create_sandbox("python").claim_name for _ in range(3)]
        mine.delete_all()
        return names

    names = speak(script)
    left = home.kubectl("get", "sandboxclaims", "--output=name")
    assert len(set(names)) == 3
    assert not [name for name in names if name in left]


def test_unclaimed_pool_members_are_not_reachable(home: PrivateHome, speak: Speaker) -> None:
    def script(sdk: Any, url: str, name: str, address: str) -> list[Any]:
        import json
        import urllib.error
        import urllib.request

        headers = {"X-Sandbox-ID": name, "X-Sandbox-Pod-IP": address, "Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/execute", json.dumps({"command": "id"}).encode(), headers)
        try:
            urllib.request.urlopen(request, timeout=20)
        except urllib.error.HTTPError as error:
            return [error.code, error.read().decode()]
        return [200, ""]

    waiting: Any = None
    end = time.monotonic() + 60
    while waiting is None:
        assert time.monotonic() < end
        boxes = json.loads(home.kubectl("get", "sandboxes", "-o", "json"))["items"]
        waiting = next((box for box in boxes if _waits(box)), None)
    status, text = speak(script, home.router, waiting["metadata"]["name"], waiting["status"]["podIPs"][0])
    assert status == 404 and "not found" in text


def _waits(box: Any) -> bool:
    owner = box["metadata"].get("ownerReferences", [{}])[0].get("kind")
    return owner == "SandboxWarmPool" and bool(box.get("status", {}).get("podIPs"))
