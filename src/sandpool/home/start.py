"""Starts the local home in the background: ``sandpool up`` in a session of its own, with a log file."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from sandpool.home import discovery, users
from sandpool.home.discovery import Home
from sandpool.home.notification import VARIABLE, ReadinessSocket

#: Name of the log file in the data directory.
LOG: Final = "up.log"
#: Tells the process which file its log goes to.
LOG_VARIABLE: Final = "SANDPOOL_LOG_FILE"
#: Makes a home end its sandboxes when it stops.
END_SANDBOXES: Final = signal.SIGUSR1
_WITHIN: Final = 120.0
_LINES: Final = 15
_LOG_BYTES: Final = 16 << 20

# Keeps the handles of started homes: they outlive this program, and a discarded handle warns about that.
_started: list[subprocess.Popen[bytes]] = []


class StartFailed(Exception):
    """The home did not start. The message says why, with the end of its log."""


def ensure_running(
    progress: Callable[[str], None],
    *,
    options: Sequence[str] = (),
    data_dir: Path | None = None,
    cwd: Path = Path("/"),
    within: float = _WITHIN,
    environ: Mapping[str, str] = os.environ,
) -> Home:
    """Return the running home of this user; start one in the background if there is none.

    ``progress`` receives one line when a home has to be started and one for each step of its start. ``options`` are
    options of ``sandpool up``, with paths relative to ``cwd``. Several processes may call this at once: one of them
    starts the home. Raises ``StartFailed``."""
    if (home := _find(data_dir, environ)) is not None:
        return home
    directory = (data_dir or users.default_data_dir(environ)).absolute()
    with _alone(directory):
        if (home := _find(data_dir, environ)) is not None:
            return home  # another process started it meanwhile
        return _start(directory, options, cwd, progress, within, environ)


def _find(data_dir: Path | None, environ: Mapping[str, str]) -> Home | None:
    return discovery.running(environ) if data_dir is None else discovery.home_of(data_dir, environ)


def _start(
    directory: Path,
    options: Sequence[str],
    cwd: Path,
    progress: Callable[[str], None],
    within: float,
    environ: Mapping[str, str],
) -> Home:
    log = directory / LOG
    progress(f"starting the local home in the background, log in {log}")
    command = [sys.executable, "-m", "sandpool.cli.main", "up", "--data-dir", str(directory), *options]
    with (
        tempfile.TemporaryDirectory(prefix="sandpool-") as private,
        closing(ReadinessSocket(Path(private) / "notify")) as ready,
        _log_file(log) as (output, logged),
    ):
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=cwd,
            env={**environ, VARIABLE: str(ready.path), LOG_VARIABLE: str(log)},
            start_new_session=True,
        )
        _started.append(process)
        if not ready.wait(within, lambda: process.poll() is None, progress):
            raise _failure(process, within, log, logged)
    home = discovery.home_of(directory, environ)
    if home is None:
        raise StartFailed(f"the home serves but did not announce itself; see {log}")
    return home


def _failure(process: subprocess.Popen[bytes], within: float, log: Path, logged: int) -> StartFailed:
    status = process.poll()
    if status is None:
        why = f"did not serve within {within:g} s; it goes on trying (pid {process.pid})"
    else:
        why = f"ended with status {status}"
    with log.open("rb") as file:
        file.seek(logged)
        lines = file.read().decode(errors="replace").splitlines()
    return StartFailed("\n".join([f"the local home {why}; the end of {log}:", *lines[-_LINES:]]))


@contextmanager
def _log_file(log: Path) -> Iterator[tuple[int, int]]:
    """Open the log file to append to, a new one if it has grown large; yields its descriptor and its size."""
    try:
        if log.exists() and log.stat().st_size > _LOG_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartFailed(f"cannot write the log {log}: {error.strerror}") from None
    try:
        yield descriptor, os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold the lock under which a home with this data directory is started."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(directory / "starting.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartFailed(f"cannot use the data directory {directory}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
