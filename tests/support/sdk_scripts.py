"""Scripts that use the SDK. Each function runs in the interpreter of the SDK (see ``worker``), so it imports what it
needs and asserts by itself.

They use the pools of ``POOLS``.
"""

from __future__ import annotations

from typing import Any, Final

IMAGE: Final = "sandpool.local/python"
#: sandboxd, under the name of the published image.
DAEMON: Final = {
    "image": "registry.k8s.io/agent-sandbox/sandboxd:latest",
    "ports": [{"name": "rest", "containerPort": 8080}, {"name": "grpc", "containerPort": 9090}],
    "readinessProbe": {"httpGet": {"path": "/v1/health", "port": 8080}, "periodSeconds": 1},
}


def pool(
    name: str,
    replicas: int,
    container: dict[str, Any],
    annotations: dict[str, str] | None = None,
    **template: Any,
) -> list[dict[str, Any]]:
    """Return a template and a pool of that name. ``container`` and ``template`` are merged over the defaults. A
    container with another command is not restarted when it ends."""
    api = "extensions.agents.x-k8s.io/v1beta1"
    main = {"name": "main", "image": IMAGE, **container}
    restart = "Never" if "command" in main else "Always"
    pod = {"terminationGracePeriodSeconds": 1, "restartPolicy": restart, "containers": [main]}
    spec = {"podTemplate": {"spec": pod}, **template}
    return [
        {
            "apiVersion": api,
            "kind": "SandboxTemplate",
            "metadata": {"name": name, "annotations": annotations or {}},
            "spec": spec,
        },
        {
            "apiVersion": api,
            "kind": "SandboxWarmPool",
            "metadata": {"name": name},
            "spec": {"replicas": replicas, "sandboxTemplateRef": {"name": name}},
        },
    ]


#: A program that ends at once may be observed ready before.
_NEVER: Final = {"readinessProbe": {"exec": {"command": ["false"]}}}


def _disk(size: str) -> dict[str, Any]:
    resources = {"requests": {"storage": size}}
    return {"metadata": {"name": "work"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources}}


POOLS: Final[list[dict[str, Any]]] = [
    *pool("python", 2, {}),
    *pool("open", 0, {}, envVarsInjectionPolicy="Overrides"),
    *pool("late", 1, {}, {"sandpool.dev/late-binding": "true"}, envVarsInjectionPolicy="Allowed"),
    *pool(
        "disk",
        0,
        {"volumeMounts": [{"name": "work", "mountPath": "/work"}]},
        volumeClaimTemplatesPolicy="Overrides",
        volumeClaimTemplates=[_disk("1Mi")],
    ),
    *pool("served", 0, {}, service=True),
    *pool("daemon", 1, DAEMON, service=True, envVarsInjectionPolicy="Allowed"),
    *pool(
        "daemon-disk",
        0,
        {**DAEMON, "volumeMounts": [{"name": "work", "mountPath": "/work"}]},
        volumeClaimTemplatesPolicy="Overrides",
        volumeClaimTemplates=[_disk("1Mi")],
    ),
    *pool("fails", 0, {"command": ["false"], **_NEVER}),
    *pool("ends", 0, {"command": ["true"], **_NEVER}),
    *pool("never", 0, _NEVER),
    *pool("refused", 0, {"securityContext": {"privileged": True}}),
    pool("no-template", 0, {})[1],
]


def runs_commands(sdk: Any, pool: str = "python") -> None:
    box = sdk.client.create_sandbox(pool)
    try:
        done = box.commands.run("echo out")
        assert (done.stdout, done.stderr, done.exit_code, done.timed_out) == ("out\n", "", 0, False), done
        done = box.commands.run("echo 'größe 日本'; echo err >&2; exit 3")
        assert (done.stdout, done.stderr, done.exit_code) == ("größe 日本\n", "err\n", 3), done
        done = box.commands.run("python3 -c 'print(6 * 7)' | tr 4 5 && echo $((1 + 1)) > sum && cat sum")
        assert done.stdout == "52\n2\n", done
        done = box.commands.run("sleep 60", command_timeout=0.3)
        assert done.timed_out and done.exit_code == 124, done
        done = box.commands.run("head -c 1000000 /dev/zero | tr '\\0' x")
        assert done.stdout == "x" * 1_000_000
        done = box.commands.run("head -c 3000000 /dev/zero | tr '\\0' x")
        assert done.stdout == "x" * (1 << 20), "output is limited"
    finally:
        box.terminate()


def moves_files(sdk: Any, pool: str = "python") -> None:
    import io

    box = sdk.client.create_sandbox(pool)
    try:
        files = box.files
        files.write("text", "größe\n")
        assert files.read("text") == "größe\n".encode()
        content = bytes(range(256)) * 1000
        files.write("deep/er/binary", content)
        assert files.read("deep/er/binary") == content
        files.write("streamed", io.BytesIO(content))
        kept = io.BytesIO()
        assert files.read_to("streamed", sdk.sink(kept)) == len(content)
        assert kept.getvalue() == content
        files.write("empty", b"")
        assert files.read("empty") == b""
        listed = {entry.name: entry for entry in files.list(".")}
        assert {"text", "deep", "streamed", "empty"} <= listed.keys(), listed
        assert (listed["text"].type, listed["text"].size) == ("file", 8)
        assert listed["deep"].type == "directory"
        assert [entry.name for entry in files.list("deep/er")] == ["binary"]
        assert files.exists("text") and files.exists("deep/er") and not files.exists("none")
        error = sdk.fails("SandboxRequestError", files.read, "none")
        assert error.status_code == 404, error
        sdk.fails("RuntimeError", files.read_to, "streamed", sdk.sink(io.BytesIO()), max_bytes=1000)
    finally:
        box.terminate()


def keeps_odd_names(sdk: Any, pool: str = "python") -> None:
    names = ["a b", "größe", "日本/語", "e%20f", "100%", "-rf", "a#b?c&d=e", "semi;colon", "$(touch x)", "`id`", "it's"]
    names += ["..hidden", "...", "a..b", "sp ace/in/di r", "\u202etxt.exe", "x" * 200, "~", "*", "\U0001f40d.py"]
    box = sdk.client.create_sandbox(pool)
    try:
        for name in names:
            box.files.write(name, name)
        for name in names:
            assert box.files.read(name).decode() == name, name
            assert box.files.exists(name), name
        listed = {entry.name for entry in box.files.list("/")}
        assert {name.split("/")[0] for name in names} <= listed, listed
    finally:
        box.terminate()


def gets_nowhere_else(sdk: Any, pool: str = "python") -> None:
    box = sdk.client.create_sandbox(pool)
    try:
        box.commands.run("ln -s /etc/hostname link; ln -s /etc stairs")
        for path in ("../../etc/hostname", "link", "stairs/hostname", "x/../../../etc/hostname"):
            error = sdk.fails("SandboxRequestError", box.files.read, path, allow_unsafe_paths=True)
            assert error.status_code in (403, 404), (path, error)
            error = sdk.fails("SandboxRequestError", box.files.write, path, b"x", allow_unsafe_paths=True)
            assert error.status_code in (403, 404), (path, error)
        error = sdk.fails("SandboxRequestError", box.files.list, "../..")
        assert error.status_code == 403, error
        sdk.fails("ValueError", box.files.write, "../x", b"")
    finally:
        box.terminate()


def streams(sdk: Any, megabytes: int, pool: str = "python") -> None:
    """Upload and download a large file without either side holding it in memory."""
    import hashlib
    import os
    import tempfile

    box = sdk.client.create_sandbox(pool)
    try:
        block = os.urandom(1 << 20)
        with tempfile.TemporaryFile() as there, tempfile.TemporaryFile() as back:
            for _ in range(megabytes):
                there.write(block)
            there.seek(0)
            box.files.write("large", there, timeout=120)
            assert box.files.read_to("large", sdk.sink(back), timeout=120) == megabytes << 20
            back.seek(0)
            there.seek(0)
            assert hashlib.file_digest(back, "md5").digest() == hashlib.file_digest(there, "md5").digest()
    finally:
        box.terminate()


def adopts_what_is_there(sdk: Any, name: str, pool: str = "python") -> None:
    first = sdk.client.create_sandbox(pool, claim_name=name, labels={"who": name})
    try:
        sdk.fails("ApiException", sdk.client.create_sandbox, pool, claim_name=name)
        other = sdk.connected(sdk.config)
        again = other.create_sandbox(pool, claim_name=name, adopt_existing=True)
        assert again.sandbox_id == first.sandbox_id
        assert again.commands.run("echo adopted").stdout == "adopted\n"
        found = other.get_sandbox(name)
        assert found.sandbox_id == first.sandbox_id
        assert found.commands.run("echo found").stdout == "found\n"
        assert sdk.client.list_all_sandboxes("default", label_selector=f"who={name}") == [name]
        assert first.status()[0] == "SandboxReady"
        found.close_connection()
    finally:
        sdk.client.delete_sandbox(name)
    assert sdk.client.list_all_sandboxes("default", label_selector=f"who={name}") == []


def brings_variables(sdk: Any, pool: str = "open") -> None:
    box = sdk.client.create_sandbox(pool, env={"GREETING": "größe $HOME", "LANG": "C"})
    try:
        done = box.commands.run("printenv GREETING LANG")
        assert done.stdout == "größe $HOME\nC\n", done
    finally:
        box.terminate()


def brings_variables_to_a_warm_sandbox(sdk: Any) -> None:
    box = sdk.client.create_sandbox("late", env={"GREETING": "größe", "LANG": "C"})
    try:
        assert box.sandbox_id.startswith("late-"), f"{box.sandbox_id} was created for the claim"
        done = box.commands.run("printenv GREETING LANG")
        assert done.stdout == "größe\nC\n", done
    finally:
        box.terminate()


def brings_volumes(sdk: Any, pool: str = "disk") -> str:
    resources = {"requests": {"storage": "3Mi"}}
    disk = {"metadata": {"name": "work"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources}}
    box = sdk.client.create_sandbox(pool, volume_claim_templates=[disk])
    done = box.commands.run("echo kept > /work/file && cat /work/file")
    assert done.stdout == "kept\n", done
    name: str = box.claim_name
    return name


def is_told_at_once(sdk: Any) -> None:
    """Each terminal reason raises its own exception long before any timeout, and leaves no claim behind."""
    import time

    create = sdk.client.create_sandbox
    disk = {"metadata": {"name": "work"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    label = {"pod_labels": {"agents.x-k8s.io/mine": "x"}}
    active = sdk.client.list_active_sandboxes()
    before = sdk.client.list_all_sandboxes("default")
    began = time.monotonic()
    sdk.fails("SandboxWarmPoolNotFoundError", create, "none", sandbox_ready_timeout=60)
    sdk.fails("SandboxTemplateNotFoundError", create, "no-template", sandbox_ready_timeout=60)
    for reason, pool, options in (
        ("EnvVarsInjectionRejected", "python", {"env": {"A": "b"}}),
        ("VolumeClaimTemplatesError", "python", {"volume_claim_templates": [disk]}),
        ("InvalidMetadata", "python", label),
        ("PodFailed", "fails", {}),
        ("PodFailed", "refused", {}),
        ("PodSucceeded", "ends", {}),
        ("ClaimExpired", "never", {"shutdown_after_seconds": 2}),
    ):
        error = sdk.fails("SandboxClaimFailedError", create, pool, sandbox_ready_timeout=60, **options)
        assert f"terminal reason {reason}" in str(error), error
    assert time.monotonic() - began < 25
    assert sdk.client.list_active_sandboxes() == active
    left = [name for name in sdk.client.list_all_sandboxes("default") if name not in before]
    assert not left, left


def expires(sdk: Any, pool: str = "python") -> None:
    import time

    box = sdk.client.create_sandbox(pool, shutdown_after_seconds=2)
    assert box.commands.run("echo soon").stdout == "soon\n"
    end = time.monotonic() + 30
    while box.status()[0] == "SandboxReady":
        assert time.monotonic() < end, box.status()
        time.sleep(0.1)
    began = time.monotonic()
    error = sdk.fails("SandboxRequestError", box.commands.run, "echo late")
    assert time.monotonic() - began < 5, error
    box.close_connection()


def does_what_only_the_daemon_can(sdk: Any) -> None:
    box = sdk.client.create_sandbox("daemon")
    try:
        done = box.commands.run("echo $GREETING; pwd", env={"GREETING": "hello"}, cwd="/")
        assert (done.stdout, done.exit_code) == ("hello\n/workspace\n", 0), done
        box.files.write("d/sub/file", b"x")
        (entry,) = box.files.list("d/sub")
        assert (entry.name, entry.type, entry.size, entry.mode) == ("file", "file", 1, "0644"), entry
        error = sdk.fails("SandboxRequestError", box.files.delete, "d")
        assert error.status_code == 409, error
        box.files.delete("d/sub/file")
        assert not box.files.exists("d/sub/file") and box.files.exists("d/sub")
        box.files.delete("d", recursive=True)
        assert not box.files.exists("d")
        sdk.fails("RuntimeError", box.commands.run, "true", cwd="none")
    finally:
        box.terminate()


#: Scripts that work in every connection mode and with both runtime APIs.
EVERYWHERE: Final = (runs_commands, moves_files, keeps_odd_names, gets_nowhere_else)
#: Scripts for modes that differ only in how they connect.
BRIEFLY: Final = (runs_commands, moves_files)
