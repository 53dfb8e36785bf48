"""What a confined process can still do, tried in a child."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandpool.process.confinement import DASHBOARD, E2B, ROUTER, HostUser, unprivileged_user

# Each attempt prints its name and the error that refused it. The sockets are from before: a listening one could be
# disconnected and used to connect elsewhere.
_ATTEMPTS = """
import ctypes, os, signal, socket, subprocess, sys, threading
from sandpool.node.runtimes import seccomp
from sandpool.process.confinement import HostUser, confine

path, port, parent = sys.argv[1], int(sys.argv[2]), os.getppid()
listening = socket.create_server(("127.0.0.1", 0))
kept = open(path)
user = HostUser(int(sys.argv[3]), int(sys.argv[4]))
libc = ctypes.CDLL(None, use_errno=True)
confine(user, getattr(seccomp, sys.argv[5]))

def fast_open():
    listening.shutdown(socket.SHUT_RD)
    listening.sendto(b"x", socket.MSG_FASTOPEN, ("127.0.0.1", port))

def reconnect():
    if libc.connect(listening.fileno(), bytes(16), 16):  # AF_UNSPEC
        raise OSError(ctypes.get_errno(), "refused")

attempts = {
    "open": lambda: open(path),
    "open directory": lambda: os.open("/", os.O_PATH),
    "list": lambda: os.listdir("/"),
    "unlink": lambda: os.unlink(path),
    "socket": socket.socket,
    "unix socket": lambda: socket.socket(socket.AF_UNIX),
    "reconnect": reconnect,
    "fast open": fast_open,
    "fork": os.fork,
    "execute": lambda: os.execv("/bin/true", ["true"]),
    "kill": lambda: os.kill(parent, 0),
    "become root": lambda: os.setuid(0),
    "namespace": lambda: os.unshare(0x10000000) if hasattr(os, "unshare") else libc_unshare(),
}

def libc_unshare():
    if libc.unshare(0x10000000):
        raise OSError(ctypes.get_errno(), "refused")

for name, attempt in attempts.items():
    if name == "become root" and user.uid == 0:
        continue
    try:
        attempt()
    except OSError as error:
        print(name, "refused", error.errno)
    else:
        print(name, "SUCCEEDED")
kept.read()
ours, theirs = socket.socketpair()
theirs.send(b"x")
assert ours.recv(1) == b"x"
threading.Thread(target=lambda: print("thread runs")).start()
"""


def attempt(path: Path, user: HostUser, restriction: str = "relay_program") -> list[str]:
    command = [sys.executable, "-c", _ATTEMPTS, str(path), "1", str(user.uid), str(user.gid), restriction]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_confined_process_has_only_its_descriptors(tmp_path: Path) -> None:
    """As the same user, who owns the file: the filters alone must refuse."""
    file = tmp_path / "mine"
    file.write_text("secret")
    outcomes = attempt(file, HostUser(os.getuid(), os.getgid()) if os.getuid() else unprivileged_user())
    assert outcomes.pop() == "thread runs"
    assert len(outcomes) >= 12
    assert [line for line in outcomes if "SUCCEEDED" in line] == []
    assert file.exists()


def test_confined_server_has_sockets_besides(tmp_path: Path) -> None:
    """It may delete its own sockets, so only other users are kept from deleting files."""
    file = tmp_path / "mine"
    file.write_text("secret")
    outcomes = attempt(
        file, HostUser(os.getuid(), os.getgid()) if os.getuid() else unprivileged_user(), "server_program"
    )
    assert outcomes.pop() == "thread runs"
    succeeded = {line.removesuffix(" SUCCEEDED") for line in outcomes if "SUCCEEDED" in line}
    assert succeeded - {"reconnect", "unlink"} == {"socket", "unix socket"}
    assert file.exists() or ("unlink" in succeeded and os.getuid() != 0)
    refused = {line.partition(" refused")[0] for line in outcomes if "refused" in line}
    assert {"open", "open directory", "list", "fork", "execute", "kill", "namespace"} <= refused


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_users_of_children_differ() -> None:
    users = {unprivileged_user(child) for child in (ROUTER, DASHBOARD, E2B)}
    assert len(users) == 3
    assert all(user.uid >= 1000 and user.uid != 65534 for user in users)


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_root_child_becomes_a_user_without_an_account() -> None:
    code = """
import os, sys
from sandpool.process.confinement import confine, unprivileged_user
status = open("/proc/self/status")
confine(unprivileged_user())
print(status.read())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    status = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    user = unprivileged_user()
    assert user.uid >= 1000 and user.uid != 65534
    assert status["Uid"].split() == [str(user.uid)] * 4
    assert status["Gid"].split() == [str(user.gid)] * 4
    assert status["Groups"].split() == []
    assert {status[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_process_with_threads_is_not_confined() -> None:
    code = """
import threading
from sandpool.process.confinement import confine, unprivileged_user
end = threading.Event()
threading.Thread(target=end.wait).start()
try:
    confine(unprivileged_user())
except OSError as error:
    print(error)
end.set()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "several threads" in done.stdout


@pytest.mark.skipif(os.getuid() != 0, reason="makes a user namespace")
def test_root_that_cannot_change_its_user_loses_its_capabilities(tmp_path: Path) -> None:
    """The only user of its user namespace is root, as in some containers."""
    code = """
import os, sys
from sandpool.process.confinement import confine, unprivileged_user
status = open("/proc/self/status")
confine(unprivileged_user())
print(status.read())
try:
    open(sys.argv[1])
except PermissionError:
    print("refused")
"""
    (tmp_path / "file").write_text("")
    command = ["unshare", "--user", "--map-root-user", sys.executable, "-c", code, str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "CapEff:\t0000000000000000" in done.stdout and "Seccomp:\t2" in done.stdout
    assert done.stdout.endswith("refused\n")
    assert "stays root" in done.stderr


def test_confined_process_is_killed_before_its_parent_when_memory_runs_out() -> None:
    program = (
        "import sys\n"
        "from sandpool.process.confinement import HostUser, confine\n"
        "confine(HostUser(*map(int, sys.argv[1:])))\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    user = unprivileged_user()
    with subprocess.Popen(
        [sys.executable, "-c", program, str(user.uid), str(user.gid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        own, others = (int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in ("self", child.pid))
        child.communicate(b"")
    assert others == max(own, 400)
