"""The walk of a new user through everything the README promises, as one script."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("new-user")


@pytest.mark.long
@pytest.mark.isolation
def test_new_user_walk_meets_no_blocker() -> None:
    if os.getuid() != 0:
        pytest.skip("the walk makes users and builds images, which needs root")
    # Not below tmp_path, which only root can reach: the walk lets a plain user run what it installs.
    with tempfile.TemporaryDirectory(prefix="sandpool-walk-") as place:
        done = subprocess.run([SCRIPT, place], capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert done.stdout.endswith("all steps passed\n")
