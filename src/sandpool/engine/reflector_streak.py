"""Failures in a row: each is counted, each kind is reported once, and the pauses between them grow.

A reflector whose API is away for an hour fails thousands of times. The log says so once when it begins, once more if it
turns into something else, and once when it is over.
"""

from __future__ import annotations

import logging
from random import Random

from sandpool.engine.backoff import Backoff
from sandpool.kube.errors import ApiError

# Failures that are part of life. Anything else is a mistake of ours and worth a traceback.
_EXPECTED = (ApiError, ConnectionError, TimeoutError)
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 30.0


class Streak:
    """``subject`` is what fails, as the log calls it."""

    def __init__(self, subject: str, random: Random, log: logging.Logger) -> None:
        self.subject = subject
        self.total = 0  # failures ever
        self._log = log
        # Half of a pause is left to chance, so that reflectors that lost their API together do not return together.
        self._backoff: Backoff[None] = Backoff(random, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE, jitter=0.5)
        self._reported: set[type[Exception]] = set()  # kinds of failures of this streak that were logged

    def failed(self, error: Exception, then: str) -> float:
        """Count a failure and report it if it is of a new kind; ``then`` says what comes next. Seconds to wait."""
        self.total += 1
        if type(error) not in self._reported:
            self._reported.add(type(error))
            expected = isinstance(error, _EXPECTED)
            self._log.log(
                logging.WARNING if expected else logging.ERROR,
                "%s failed: %s; %s",
                self.subject,
                str(error) or type(error).__name__,
                then,
                exc_info=None if expected else error,
            )
        pause = self._backoff.pause(None)
        asked = error.retry_after if isinstance(error, ApiError) else None
        return max(pause, asked or 0.0)

    def ended(self) -> None:
        """It works again."""
        failures = self._backoff.failures(None)
        if failures:
            self._log.info("%s works again after %d failures", self.subject, failures)
            self._backoff.forget(None)
            self._reported.clear()
