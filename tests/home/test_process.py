"""A process is recognised by more than its id."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

from sandpool.home.process import ProcessIdentity, _started


def test_this_process_runs() -> None:
    own = ProcessIdentity.current()
    assert own.pid == os.getpid()
    assert own.is_running()
    assert own.owner() == os.geteuid()


def test_a_reused_process_id_is_another_process() -> None:
    own = ProcessIdentity.current()
    assert not replace(own, started=own.started - 1).is_running()
    assert not replace(own, boot="another boot").is_running()


def test_a_process_that_ended_does_not_run_even_before_its_parent_waits() -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    known = replace(ProcessIdentity.current(), pid=process.pid, started=_started(process.pid))
    assert known.is_running()
    assert process.stdin is not None
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not known.is_running()  # a zombie
    process.wait()
    assert not known.is_running()
    assert known.owner() is None
