"""The probes find what there is to find: where nothing or little confines them, they say so.

A suite that finds no leaks because it cannot find any would be worse than none.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from sandpool.node.runtimes.bwrap import find_bwrap
from tests.support.escape.neighbourhood import Neighbourhood

pytestmark = pytest.mark.isolation


def run(*argv: str) -> dict[str, Any]:
    """Return the finding of each probe, or None."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert not [what for what in found.values() if what and what.startswith("broken")], found
    return found


def leaks(found: dict[str, Any]) -> set[str]:
    return {name for name, what in found.items() if what is not None}


def test_probes_find_everything_on_an_unconfined_host(neighbours: Neighbourhood) -> None:
    """Runs as root of the host, in mount and cgroup namespaces so that nothing stays."""
    found = run("unshare", "--mount", "/usr/bin/python3", *neighbours.argv()[1:])
    unfound = {
        "descriptors_are_inherited",  # subprocess passes none on
        "groups_of_the_host_are_kept",  # root need not be in any
    }
    assert set(found) - leaks(found) <= unfound


def test_probes_find_the_leaks_of_a_naive_sandbox(neighbours: Neighbourhood) -> None:
    """The obvious way to call bwrap: the whole host, read-only, started by root."""
    bwrap = find_bwrap()
    found = run(
        str(bwrap.directory / bwrap.program), "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev",
        "--unshare-pid", "--unshare-net", "--tmpfs", "/tmp", "/usr/bin/python3", *neighbours.argv()[1:],
    )  # fmt: skip
    assert leaks(found) >= {
        "socket_files_of_the_host_are_reached",
        "secrets_of_the_host_are_read",
        "password_hashes_are_read",
        "settings_of_the_kernel_are_written",
        "environment_of_the_launcher_is_read",
        "families_of_sockets_that_are_not_confined",
        "namespaces_are_made",
        "calls_that_reach_the_shared_kernel",
        "other_abis_of_the_processor_are_open",
        "privileges_are_left",
    }


def test_probes_find_the_leaks_of_a_hardened_sandbox_started_by_root(neighbours: Neighbourhood) -> None:
    """Nothing of the host mounted, no capabilities, another user inside: but it was started by root."""
    bwrap = find_bwrap()
    found = run(
        str(bwrap.directory / bwrap.program), "--ro-bind", "/usr", "/usr", "--symlink", "usr/lib", "/lib",
        "--symlink", "usr/lib64", "/lib64", "--symlink", "usr/bin", "/bin", "--proc", "/proc", "--dev", "/dev",
        "--tmpfs", "/tmp", "--unshare-all", "--unshare-user", "--disable-userns", "--uid", "1000",
        "--gid", "1000", "--cap-drop", "ALL",
        "--new-session", "--clearenv", "/usr/bin/python3", *neighbours.argv()[1:],
    )  # fmt: skip
    assert leaks(found) >= {
        "settings_of_the_kernel_are_written",
        "environment_of_the_launcher_is_read",
        "the_user_is_root_of_the_host",
    }
