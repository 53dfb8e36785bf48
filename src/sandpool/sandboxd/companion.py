"""The command of an image that is run beside the server.

An image that does not serve the runtime API is started by the server: ``sandboxd --run COMMAND`` ends with the command,
``sandboxd --beside COMMAND`` keeps serving when the command has ended well, as a shell without a terminal does at once.
"""

from __future__ import annotations

import os
import sys
from _signal import SIGINT, SIGPIPE, SIGTERM  # type: ignore[import-not-found]
from _thread import start_new_thread

_NOT_FOUND = 127


class Companion:
    """With ``ends_with_command`` this process ends when the command does, with its exit code."""

    def __init__(self, words: list[str], ends_with_command: bool) -> None:
        self.ends_with_command = ends_with_command
        self._pid = 0
        try:
            self._pid = os.posix_spawnp(words[0], words, os.environ, setsigdef=[SIGINT, SIGTERM, SIGPIPE])
        except OSError as error:
            sys.stderr.write(f"exec: {words[0]}: {error.strerror}\n")
            if ends_with_command:
                raise SystemExit(_NOT_FOUND) from error
            return
        start_new_thread(self._wait, ())

    def signal(self, number: int) -> bool:
        """Pass a signal to the command. Returns False if it does not run."""
        if not self._pid:
            return False
        try:
            os.kill(self._pid, number)
        except ProcessLookupError:
            return False
        return True

    def _wait(self) -> None:
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        code = os.waitstatus_to_exitcode(status)
        if self.ends_with_command or code != 0:
            os._exit(code if code >= 0 else 128 - code)
