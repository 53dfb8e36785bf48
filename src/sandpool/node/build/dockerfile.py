"""Parses Dockerfiles.

FROM, RUN, COPY, ENV, ARG, WORKDIR, USER, CMD, ENTRYPOINT, EXPOSE and STOPSIGNAL are supported. LABEL and MAINTAINER
change nothing here and are skipped. Everything else is an error that names the line, never silently left out.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from sandpool.node.build.recipe import Argument, BuildFailure, Configure, Copy, Recipe, Run, Step, substitute

_SKIPPED: Final = frozenset({"LABEL", "MAINTAINER"})
_INSTEAD: Final = {
    "ADD": "use COPY, and RUN with curl or tar",
    "VOLUME": "declare volumes in the pod template",
    "HEALTHCHECK": "declare probes in the pod template",
    "SHELL": 'use the form RUN ["shell", "-c", "command"]',
    "ONBUILD": "repeat the instruction in the images that are built on this one",
}
_PAIR: Final = re.compile(r"([A-Za-z_]\w*)=")


class _Instruction(NamedTuple):
    line: int
    name: str
    rest: str

    def failure(self, why: str) -> BuildFailure:
        return BuildFailure(f"line {self.line}: {self.name} {why}")


def parse_dockerfile(text: str, arguments: dict[str, str] | None = None) -> Recipe:
    """Raises ``BuildFailure``. ``arguments`` are the values of ARGs before FROM."""
    base, steps = "", list[Step]()
    before: dict[str, str] = {}
    for instruction in _instructions(text):
        if instruction.name == "ARG" and not base:
            name, _, default = instruction.rest.partition("=")
            before[name] = (arguments or {}).get(name, default)
        elif instruction.name == "FROM":
            if base:
                raise instruction.failure("appears twice: builds of several stages are not supported")
            base = _base(instruction, before)
        elif not base:
            raise instruction.failure("is before FROM, which has to come first")
        elif instruction.name not in _SKIPPED:
            steps += _step(instruction)
    if not base:
        raise BuildFailure("there is no FROM")
    return Recipe(base, tuple(steps))


def _instructions(text: str) -> Iterator[_Instruction]:
    start, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if (not parts and not line.strip()) or line.lstrip().startswith("#"):
            continue  # comments may be anywhere, also inside of a continued instruction
        if not parts:
            start = number
        continued = line.rstrip().endswith("\\")
        parts.append(line.rstrip()[:-1] if continued else line.strip() if not parts else line)
        if not continued:
            name, _, rest = "".join(parts).strip().partition(" ")
            yield _Instruction(start, name.upper(), rest.strip())
            parts = []
    if parts:
        raise BuildFailure(f"line {start}: the last line ends with a backslash")


def _base(instruction: _Instruction, variables: dict[str, str]) -> str:
    words = substitute(instruction.rest, variables).split()
    if words and words[0].startswith("--"):
        raise instruction.failure(f"does not support {words[0]}")
    if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
        raise instruction.failure("needs the name of one image")
    return words[0]


def _step(instruction: _Instruction) -> list[Step]:
    parser = _PARSERS.get(instruction.name)
    if parser is None:
        advice = _INSTEAD.get(instruction.name)
        raise instruction.failure(f"is not supported{f'; {advice}' if advice else ''}")
    if not instruction.rest:
        raise instruction.failure("needs an argument")
    return parser(instruction)


def _run(instruction: _Instruction) -> list[Step]:
    if instruction.rest.startswith("--"):
        raise instruction.failure(f"does not support {instruction.rest.split()[0]}")
    if re.search(r"<<-?['\"]?\w", instruction.rest):
        raise instruction.failure("does not support here-documents; write the file with COPY")
    return [Run(f"RUN {instruction.rest}", _words(instruction))]


def _copy(instruction: _Instruction) -> list[Step]:
    words = _list(instruction) or tuple(instruction.rest.split())
    for word in words:
        if word.startswith("--"):
            raise instruction.failure(f"does not support {word.partition('=')[0]}")
    if len(words) < 2:
        raise instruction.failure("needs a source and a destination")
    return [Copy(f"COPY {instruction.rest}", words[:-1], words[-1])]


def _env(instruction: _Instruction) -> list[Step]:
    text = f"ENV {instruction.rest}"
    if not _PAIR.match(instruction.rest):  # the old form: ENV NAME the rest of the line
        name, _, value = instruction.rest.partition(" ")
        return [Configure(text, env={name: value.strip()})]
    try:
        pairs = [word.partition("=") for word in shlex.split(instruction.rest)]
    except ValueError as error:
        raise instruction.failure(f"cannot be read: {error}") from error
    if not all(separator for _, separator, _ in pairs):
        raise instruction.failure("needs NAME=VALUE")
    return [Configure(text, env={name: value for name, _, value in pairs})]


def _arg(instruction: _Instruction) -> list[Step]:
    name, separator, default = instruction.rest.partition("=")
    return [Argument(f"ARG {instruction.rest}", name, default.strip("\"'") if separator else None)]


def _words(instruction: _Instruction) -> tuple[str, ...]:
    return _list(instruction) or ("/bin/sh", "-c", instruction.rest)


def _list(instruction: _Instruction) -> tuple[str, ...]:
    """The words of an instruction in the form of a JSON list; empty if it does not have that form."""
    if not instruction.rest.startswith("["):
        return ()
    try:
        found = json.loads(instruction.rest)
    except ValueError:
        return ()
    return tuple(found) if isinstance(found, list) and all(isinstance(word, str) for word in found) else ()


_PARSERS: Final[dict[str, Callable[[_Instruction], list[Step]]]] = {
    "RUN": _run,
    "COPY": _copy,
    "ENV": _env,
    "ARG": _arg,
    "WORKDIR": lambda each: [Configure(f"WORKDIR {each.rest}", working_dir=each.rest)],
    "USER": lambda each: [Configure(f"USER {each.rest}", user=each.rest)],
    "CMD": lambda each: [Configure(f"CMD {each.rest}", command=_words(each))],
    "ENTRYPOINT": lambda each: [Configure(f"ENTRYPOINT {each.rest}", entrypoint=_words(each), command=())],
    "EXPOSE": lambda each: [Configure(f"EXPOSE {each.rest}", ports=tuple(each.rest.split()))],
    "STOPSIGNAL": lambda each: [Configure(f"STOPSIGNAL {each.rest}", stop_signal=each.rest)],
}
