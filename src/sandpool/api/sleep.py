"""The sleep of sandboxes: annotations of a pod template, read into ``SleepSettings``.

A time is a duration such as ``30s``, ``5m`` or ``1h30m``; ``never``, like no annotation, switches that kind of sleep
off. A time below ``MIN_SECONDS`` counts as that: a sandbox must not fall asleep between two requests of one client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sandpool.api.labels import IDLE_CPU, IDLE_FREEZE_AFTER, IDLE_SUSPEND_AFTER
from sandpool.api.times import parse_seconds

NEVER: Final = "never"
#: The shortest time without use after which a sandbox falls asleep, in seconds.
MIN_SECONDS: Final = 1.0
#: Cores that an idle sandbox may use: more than a server needs that waits, less than any work.
DEFAULT_CPU: Final = 0.05


@dataclass(frozen=True, slots=True)
class SleepSettings:
    """``freeze_after`` and ``suspend_after`` are seconds without use; None: never. ``cpu`` is the number of cores above
    which a sandbox is in use. ``problems`` are the annotations that cannot be read: they switch their sleep off."""

    freeze_after: float | None = None
    suspend_after: float | None = None
    cpu: float = DEFAULT_CPU
    problems: tuple[str, ...] = ()

    @property
    def sleeps(self) -> bool:
        return self.freeze_after is not None or self.suspend_after is not None

    @property
    def shortest(self) -> float:
        """The time after which the first kind of sleep begins."""
        return min(each for each in (self.freeze_after, self.suspend_after) if each is not None)


AWAKE: Final = SleepSettings()


def read_sleep_settings(annotations: Mapping[str, str] | None) -> SleepSettings:
    """Read the annotations of a pod or a pod template."""
    given = annotations or {}
    if IDLE_FREEZE_AFTER not in given and IDLE_SUSPEND_AFTER not in given:
        return AWAKE
    problems: list[str] = []
    freeze_after, suspend_after = (_seconds(given, key, problems) for key in (IDLE_FREEZE_AFTER, IDLE_SUSPEND_AFTER))
    return SleepSettings(freeze_after, suspend_after, _cores(given, problems), tuple(problems))


def is_sleep_time(text: str) -> bool:
    """Whether a value can be read as a time of one of the annotations."""
    return text == NEVER or parse_seconds(text) is not None


def sleep_time(time: float | str) -> str:
    """The value of an annotation for a time in seconds, or in the form of the annotations. Raises ``ValueError``."""
    text = time if isinstance(time, str) else f"{time:.3f}".rstrip("0").rstrip(".") + "s"
    if not is_sleep_time(text):
        raise ValueError(f'"{time}" is not a duration: use seconds, a form like 30s, 5m or 1h30m, or "{NEVER}"')
    return text


def _seconds(given: Mapping[str, str], key: str, problems: list[str]) -> float | None:
    text = given.get(key, NEVER)
    if text == NEVER:
        return None
    seconds = parse_seconds(text)
    if seconds is None:
        problems.append(f'{key}: "{text}" is not a duration: use a form like 30s, 5m or 1h30m, or "{NEVER}"')
        return None
    return max(seconds, MIN_SECONDS)


def _cores(given: Mapping[str, str], problems: list[str]) -> float:
    text = given.get(IDLE_CPU)
    if text is None:
        return DEFAULT_CPU
    from sandpool.api.quantity import parse  # slow to import, and rarely needed

    try:
        return parse(text).billionths / 1e9
    except ValueError:
        problems.append(f'{IDLE_CPU}: "{text}" is not a number of cores: use a form like 50m or 0.1')
        return DEFAULT_CPU
