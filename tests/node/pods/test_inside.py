"""Pod semantics seen from inside a real sandbox."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandpool.api.kinds import CONFIG_MAP, POD, SECRET
from sandpool.api.labels import FREEZE_WHILE_WARM, IN_MEMORY, ROOT_MEDIUM, WARM_POOL
from sandpool.kube.client import MergePatch
from sandpool.testing.objects import new
from sandpool.testing.waiting import until
from tests.support.real_node import IMAGE, RealNode, real_node

pytestmark = [pytest.mark.isolation, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealNode]:
    async with real_node(tmp_path_factory.mktemp("node")) as running:
        yield running


async def test_command_has_arguments_and_working_directory(node: RealNode) -> None:
    script = 'echo "$0 $1"; pwd'
    name = await node.create(
        "sh", "-c", script, container={"args": ["$(GREETING)", "$$(GREETING)"], "workingDir": "/tmp",
        "env": [{"name": "GREETING", "value": "hello"}]}, spec={"restartPolicy": "Never"},
    )  # fmt: skip
    await node.phase(name, "Succeeded")
    assert await node.output(name) == "hello $(GREETING)\n/tmp\n"


async def test_environment_has_variables_of_all_sources(node: RealNode) -> None:
    await node.client.create(CONFIG_MAP, new(CONFIG_MAP, "inside", data={"MODE": "fast"}), "default")
    secret = {"password": base64.b64encode(b"hush").decode()}
    await node.client.create(SECRET, new(SECRET, "inside", data=secret), "default")
    env = [
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "inside", "key": "password"}}},
        {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['tier']"}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
    ]
    container = {
        "env": env,
        "envFrom": [{"prefix": "CM_", "configMapRef": {"name": "inside"}}],
        "resources": {"limits": {"cpu": "500m"}},
    }
    script = "echo $PASSWORD $LABEL $CM_MODE $CPU $ADDRESS; hostname -I 2>/dev/null || cat /proc/net/fib_trie"
    seen = await node.look(script, container=container, metadata={"labels": {"tier": "web"}})
    words = seen.split()
    assert words[:4] == ["hush", "web", "fast", "500"]
    assert words[4] in words[5:]


WHEEL = """
import zipfile
with zipfile.ZipFile("greeting-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("greeting.py", "def main(): print('hello from a package')")
    wheel.writestr("greeting-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: greeting\\nVersion: 1.0\\n")
    wheel.writestr("greeting-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr("greeting-1.0.dist-info/entry_points.txt", "[console_scripts]\\ngreeting = greeting:main\\n")
    wheel.writestr("greeting-1.0.dist-info/RECORD", "")
"""


async def test_pip_installs_packages_in_a_running_sandbox(node: RealNode) -> None:
    """Without options: for the user, with programs in PATH."""
    script = f"cat > make.py <<'EOF'{WHEEL}EOF\npython3 make.py && pip install --no-index ./*.whl >&2 && greeting"
    seen = await node.look(f"cd /tmp && {script}; python3 -c 'import greeting; print(greeting.__file__)'")
    assert "hello from a package" in seen
    assert "/home/sandbox/.local/lib/" in seen


async def test_a_sandbox_knows_the_package_index_of_the_machine(node: RealNode) -> None:
    assert (await node.look("cat /etc/pip.conf")).startswith("[global]\n")
    refused = await node.look("(echo > /etc/pip.conf) 2>&1 || true")
    assert "Read-only" in refused or "denied" in refused


FREE = "df -k --output=size,fstype / | tail -1"


async def test_the_writable_root_is_a_disk_of_the_ephemeral_storage_limit(node: RealNode) -> None:
    size, kind = (await node.look(FREE)).split()
    assert kind == "ext4" and 9 << 20 < int(size) <= 10 << 20, "10 GiB unless a limit is set"
    limited = {"resources": {"limits": {"ephemeral-storage": "64Mi"}}}
    size, kind = (await node.look(FREE, container=limited)).split()
    assert kind == "ext4" and 48 << 10 < int(size) <= 64 << 10


async def test_the_writable_root_can_be_kept_in_memory(node: RealNode) -> None:
    annotated = {"annotations": {ROOT_MEDIUM: IN_MEMORY}}
    limited = {"resources": {"limits": {"ephemeral-storage": "64Mi"}}}
    assert (await node.look(FREE, metadata=annotated)).split() == [str(256 << 10), "tmpfs"]
    assert (await node.look(FREE, metadata=annotated, container=limited)).split() == [str(64 << 10), "tmpfs"]


async def test_container_runs_as_user_and_group(node: RealNode) -> None:
    security = {"runAsUser": 1234, "runAsGroup": 77}
    assert await node.look("id -u; id -g", spec={"securityContext": security}) == "1234\n77\n"
    assert await node.look("id -u") == "1000\n"
    own = {"securityContext": {"runAsUser": 4321}}
    assert await node.look("id -u", container=own, spec={"securityContext": security}) == "4321\n"


async def test_read_only_root_is_enforced(node: RealNode) -> None:
    script = "(echo x > /file) 2>/dev/null && echo written || echo refused"
    assert await node.look(script) == "written\n"
    assert await node.look(script, container={"securityContext": {"readOnlyRootFilesystem": True}}) == "refused\n"


async def test_hostname_and_hosts_file_are_set(node: RealNode) -> None:
    spec = {"hostname": "box", "subdomain": "boxes", "hostAliases": [{"ip": "192.0.2.7", "hostnames": ["db"]}]}
    seen = await node.look("hostname; cat /etc/hosts /etc/resolv.conf", spec=spec)
    assert seen.startswith("box\n")
    assert "box.boxes.default.svc.cluster.local\tbox\n" in seen
    assert "192.0.2.7\tdb\n" in seen
    full = await node.look("hostname; hostname -s; echo $HOSTNAME", spec={**spec, "setHostnameAsFQDN": True})
    assert full == "box.boxes.default.svc.cluster.local\nbox\nbox.boxes.default.svc.cluster.local\n"
    assert "search default.svc.cluster.local svc.cluster.local cluster.local\n" in seen


async def test_init_containers_share_volumes_with_the_others(node: RealNode) -> None:
    mounts = [{"name": "shared", "mountPath": "/shared"}]
    init = {"name": "init", "image": IMAGE, "command": ["sh", "-c", "echo made > /shared/file"], "volumeMounts": mounts}
    spec = {"initContainers": [init], "volumes": [{"name": "shared", "emptyDir": {}}]}
    assert await node.look("cat /shared/file", container={"volumeMounts": mounts}, spec=spec) == "made\n"


async def test_configuration_volumes_have_their_files(node: RealNode) -> None:
    await node.client.create(CONFIG_MAP, new(CONFIG_MAP, "shown", data={"mode": "fast", "dir": "deep"}), "default")
    secret = {"password": base64.b64encode(b"hush").decode()}
    await node.client.create(SECRET, new(SECRET, "shown", data=secret), "default")
    name = {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}
    sources = [{"secret": {"name": "shown"}}, {"downwardAPI": {"items": [name]}}]
    volumes = [
        {"name": "config", "configMap": {"name": "shown"}},
        {"name": "secret", "secret": {"secretName": "shown", "defaultMode": 0o400}},
        {"name": "both", "projected": {"sources": sources}},
        {"name": "empty", "emptyDir": {"sizeLimit": "8Mi"}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
    ]
    mounts = [
        *({"name": each, "mountPath": f"/{each}"} for each in ("config", "secret", "both", "memory")),
        {"name": "config", "mountPath": "/one/file", "subPath": "mode"},
        {"name": "empty", "mountPath": "/part", "subPathExpr": "$(DIR)/er"},
        {"name": "empty", "mountPath": "/whole", "readOnly": True},
    ]
    script = (
        "cat /config/mode /secret/password /both/password /one/file; echo; cat /both/name; echo; "
        "stat -Lc %a /secret/password; echo part > /part/file; cat /whole/deep/er/file; "
        "for d in /config /secret /both /whole; do touch $d/new 2>/dev/null && echo written to $d; done; "
        "for d in /part /memory; do head -c 16m /dev/zero > $d/much 2>/dev/null && echo $d is too large; done; echo end"
    )
    env = [{"name": "DIR", "valueFrom": {"configMapKeyRef": {"name": "shown", "key": "dir"}}}]
    seen = await node.look(script, container={"volumeMounts": mounts, "env": env}, spec={"volumes": volumes})
    first, called, *rest = seen.splitlines()
    assert first == "fasthushhushfast"
    assert called.startswith("pod-")
    assert rest == ["400", "part", "end"]


async def test_volumes_follow_their_objects(node: RealNode) -> None:
    await node.client.create(CONFIG_MAP, new(CONFIG_MAP, "followed", data={"mode": "slow"}), "default")
    labels = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
    sources = [{"configMap": {"name": "followed"}}, {"downwardAPI": {"items": [labels]}}]
    spec = {"volumes": [{"name": "both", "projected": {"sources": sources}}]}
    mounts = [{"name": "both", "mountPath": "/both"}]
    name = await node.create("sleep", "1000", container={"volumeMounts": mounts}, spec=spec)
    await node.ready(name)
    await node.client.patch(CONFIG_MAP, "followed", MergePatch({"data": {"mode": "fast"}}), "default")
    await node.client.patch(POD, name, MergePatch({"metadata": {"labels": {"claim": "mine"}}}), "default")
    worker = node.node.agent.find("default", name)
    assert worker is not None

    async def seen() -> bool:
        return "claim" in (worker.state.pod.object["metadata"].get("labels") or {})

    await until(seen)
    await node.node.refresh()
    await _execute(node, name, "grep", "-q", 'claim="mine"', "/both/labels")
    await _execute(node, name, "grep", "-q", "fast", "/both/mode")
    await node.delete(name, grace_period_seconds=0)


async def test_sidecar_shares_the_network_and_ends_with_the_pod(node: RealNode) -> None:
    serve = ["python3", "-m", "http.server", "8080"]
    side = {
        "name": "side",
        "image": IMAGE,
        "restartPolicy": "Always",
        "command": serve,
        "startupProbe": {"httpGet": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 30},
    }
    script = "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8080/\").status)'"
    name = await node.create("sh", "-c", script, spec={"initContainers": [side], "restartPolicy": "Never"})
    found = await node.phase(name, "Succeeded", "Failed")
    assert await node.output(name) == "200\n"
    assert "terminated" in found["status"]["initContainerStatuses"][0]["state"]


async def test_exit_code_is_reported(node: RealNode) -> None:
    name = await node.create("sh", "-c", "exit 42", spec={"restartPolicy": "Never"})
    found = await node.phase(name, "Failed")
    ended = found["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (42, "Error")


async def test_oom_kill_is_reported(node: RealNode) -> None:
    script = "import sys; data = bytearray(1 << 20) * 512; print(len(data))"
    container = {"resources": {"limits": {"memory": "64Mi"}}}
    name = await node.create("python3", "-c", script, container=container, spec={"restartPolicy": "Never"})
    found = await node.phase(name, "Failed")
    ended = found["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


async def test_missing_program_is_reported_and_retried(node: RealNode) -> None:
    name = await node.create("no-such-program")

    async def told() -> str:
        states = (await node.get(name))["status"].get("containerStatuses") or [{"state": {}}]
        return str((states[0]["state"].get("waiting") or {}).get("message") or "")

    assert "no-such-program" in await until(told)
    await node.delete(name)
    await node.gone(name)


async def test_missing_program_fails_a_pod_with_restart_policy_never(node: RealNode) -> None:
    name = await node.create("no-such-program", spec={"restartPolicy": "Never"})
    ended = (await node.phase(name, "Failed"))["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert "no-such-program" in ended["message"]


async def test_termination_message_is_reported(node: RealNode) -> None:
    name = await node.create("sh", "-c", "echo the end > /dev/termination-log; exit 1", spec={"restartPolicy": "Never"})
    found = await node.phase(name, "Failed")
    assert found["status"]["containerStatuses"][0]["state"]["terminated"]["message"] == "the end\n"


async def test_container_is_restarted(node: RealNode) -> None:
    mounts = [{"name": "kept", "mountPath": "/kept"}]
    script = "echo run >> /kept/runs; [ $(wc -l < /kept/runs) = 2 ] && echo second && sleep 100; exit 1"
    spec = {"volumes": [{"name": "kept", "emptyDir": {}}]}
    name = await node.create("sh", "-c", script, container={"volumeMounts": mounts}, spec=spec)
    await node.says(name, "second")
    found = await node.ready(name)
    state = found["status"]["containerStatuses"][0]
    assert state["restartCount"] == 1
    assert state["lastState"]["terminated"]["exitCode"] == 1


async def test_exec_probes_run_inside_the_container(node: RealNode) -> None:
    """The pod is ready while one file exists and restarts when another one is deleted."""
    script = "touch /tmp/ready /tmp/alive; echo up; while :; do sleep 0.1; done"
    quick = {"periodSeconds": 1, "failureThreshold": 1}
    container = {
        "readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/ready"]}, **quick},
        "livenessProbe": {"exec": {"command": ["test", "-e", "/tmp/alive"]}, **quick, "initialDelaySeconds": 1},
    }
    name = await node.create("sh", "-c", script, container=container)
    await node.ready(name)
    await _execute(node, name, "rm", "/tmp/ready")
    await node.ready(name, "False")
    await _execute(node, name, "touch", "/tmp/ready")
    await node.ready(name)
    await _execute(node, name, "rm", "/tmp/alive")

    async def restarted() -> bool:
        return bool((await node.get(name))["status"]["containerStatuses"][0]["restartCount"] == 1)

    await until(restarted)
    await node.delete(name, grace_period_seconds=0)


async def test_http_and_tcp_probes_reach_the_container(node: RealNode) -> None:
    container = {
        "ports": [{"name": "web", "containerPort": 8000}],
        "readinessProbe": {"httpGet": {"port": "web", "path": "/"}, "periodSeconds": 1},
        "startupProbe": {"tcpSocket": {"port": "web"}, "periodSeconds": 1, "failureThreshold": 30},
    }
    name = await node.create("python3", "-m", "http.server", "8000", container=container)
    await node.ready(name)
    await node.delete(name, grace_period_seconds=0)


async def test_lifecycle_hooks_run_inside_the_container(node: RealNode) -> None:
    mounts = [{"name": "kept", "mountPath": "/kept"}]
    lifecycle = {
        "postStart": {"exec": {"command": ["sh", "-c", "echo post > /kept/post"]}},
        "preStop": {"exec": {"command": ["sh", "-c", "echo pre > /kept/pre"]}},
    }
    script = "trap 'cat /kept/post /kept/pre; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    name = await node.create(
        "sh", "-c", script, container={"volumeMounts": mounts, "lifecycle": lifecycle},
        spec={"volumes": [{"name": "kept", "emptyDir": {}}], "terminationGracePeriodSeconds": 20},
        metadata={"finalizers": ["example.com/look"]},
    )  # fmt: skip
    await node.ready(name)
    await node.says(name, "up")
    await node.delete(name)
    assert await node.says(name, "pre") == "up\npost\npre\n"
    await node.client.patch(POD, name, MergePatch({"metadata": {"finalizers": None}}), "default")
    await node.gone(name)


async def test_container_that_ignores_sigterm_is_killed(node: RealNode) -> None:
    script = "trap '' TERM; echo deaf; while :; do sleep 0.05; done"
    name = await node.create("sh", "-c", script, spec={"terminationGracePeriodSeconds": 1})
    await node.ready(name)
    await node.says(name, "deaf")
    await node.delete(name)
    await node.gone(name)


async def test_warm_pod_is_frozen_until_it_is_claimed(node: RealNode) -> None:
    metadata = {"annotations": {FREEZE_WHILE_WARM: "true"}, "labels": {WARM_POOL: "abc"}}
    script = "i=0; while :; do i=$((i+1)); echo tick $i; sleep 0.01; done"
    name = await node.create("sh", "-c", script, metadata=metadata)
    await node.ready(name)
    worker = node.node.agent.find("default", name)
    assert worker is not None

    async def frozen() -> bool:
        return worker.state.frozen

    await until(frozen)
    before = await node.output(name)
    assert await worker.resources.containers.running["main"].is_paused()
    await node.client.patch(POD, name, MergePatch({"metadata": {"labels": {WARM_POOL: None}}}), "default")

    async def goes_on() -> bool:
        return len(await node.output(name)) > len(before)

    await until(goes_on)
    await node.delete(name, grace_period_seconds=0)


async def test_containers_of_a_pod_do_not_see_each_others_processes(node: RealNode) -> None:
    other = {"name": "other", "image": IMAGE, "command": ["sleep", "1000"]}
    script = "ls /proc | grep -c '^[0-9]*$'"
    main = {"name": "main", "image": IMAGE, "command": ["sh", "-c", script]}
    name = await node.create(spec={"containers": [other, main], "restartPolicy": "Never"})
    counted = await node.says(name, "\n")
    assert int(counted) <= 5
    await node.delete(name, grace_period_seconds=0)


async def _execute(node: RealNode, pod: str, *argv: str) -> None:
    import os

    from sandpool.node.runtimes.runtime import Command, Stdio

    worker = node.node.agent.find("default", pod)
    assert worker is not None
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        process = await worker.resources.containers.running["main"].execute(
            Command(argv), Stdio(nothing, nothing, nothing)
        )
    finally:
        os.close(nothing)
    assert await process.wait() == 0
