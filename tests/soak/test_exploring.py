"""The tests that say anything to our servers, with something new to say each time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

TESTS = Path(__file__).parents[1]
MINUTES = float(os.environ.get("SANDPOOL_MINUTES", "2"))


@pytest.mark.parametrize(
    "file",
    [
        *("router/test_any_request.py", "router/test_contract.py", "router/test_tokens.py"),
        *("sandboxd/test_any_request.py", "sandboxd/test_http.py", "sandboxd/test_root.py"),
        *("sandboxd/test_process_messages.py", "server/streams"),
    ],
)
def test_new_examples_find_no_failure(file: str) -> None:
    """Failures are printed in a form that can be run again."""
    end = time.monotonic() + 60 * MINUTES
    while time.monotonic() < end:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(TESTS / file)],
            env={**os.environ, "SANDPOOL_EXPLORE": "1"},
            cwd=TESTS.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
