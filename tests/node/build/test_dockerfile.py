from __future__ import annotations

import pytest

from sandpool.node.build.dockerfile import parse_dockerfile
from sandpool.node.build.recipe import Argument, BuildFailure, Configure, Copy, Run


def test_every_supported_instruction_is_parsed() -> None:
    recipe = parse_dockerfile(
        """# syntax=docker/dockerfile:1
ARG BASE=python
FROM ${BASE} AS build
LABEL a=b
run pip install \\
    # a comment in between
    pandas \\
    numpy
RUN ["python3", "-c", "print(1)"]
COPY a b /to/
COPY ["with space", "/x"]
ENV A=1 B="two words"
ENV C the rest of it
ARG VERSION=3
WORKDIR /srv
USER 1000
ENTRYPOINT ["python3"]
CMD server.py
STOPSIGNAL SIGINT
EXPOSE 80
"""
    )
    assert recipe.base == "python"
    run, listed, copy, copied, env, old, arg, *settings = recipe.steps
    assert isinstance(run, Run) and run.words[:2] == ("/bin/sh", "-c")
    assert run.words[2].split() == ["pip", "install", "pandas", "numpy"]
    assert isinstance(listed, Run) and listed.words == ("python3", "-c", "print(1)")
    assert isinstance(copy, Copy) and (copy.sources, copy.target) == (("a", "b"), "/to/")
    assert isinstance(copied, Copy) and (copied.sources, copied.target) == (("with space",), "/x")
    assert isinstance(env, Configure) and env.env == {"A": "1", "B": "two words"}
    assert isinstance(old, Configure) and old.env == {"C": "the rest of it"}
    assert isinstance(arg, Argument) and (arg.name, arg.default) == ("VERSION", "3")
    workdir, user, entrypoint, command, signal, expose = settings
    assert isinstance(workdir, Configure) and workdir.working_dir == "/srv"
    assert isinstance(user, Configure) and user.user == "1000"
    assert isinstance(entrypoint, Configure) and entrypoint.entrypoint == ("python3",)
    assert isinstance(command, Configure) and command.command == ("/bin/sh", "-c", "server.py")
    assert isinstance(signal, Configure) and signal.stop_signal == "SIGINT"
    assert isinstance(expose, Configure) and expose.ports == ("80",)


def test_arguments_before_from_can_be_given() -> None:
    assert parse_dockerfile("ARG BASE=a\nFROM $BASE\n", {"BASE": "b"}).base == "b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no FROM"),
        ("RUN x", "line 1: RUN is before FROM, which has to come first"),
        ("FROM a\nFROM b", "line 2: FROM appears twice: builds of several stages are not supported"),
        ("FROM --platform=x a", "line 1: FROM does not support --platform=x"),
        ("FROM a\n\nADD x y", "line 3: ADD is not supported; use COPY, and RUN with curl or tar"),
        ("FROM a\nVOLUME /x", "line 2: VOLUME is not supported; declare volumes in the pod template"),
        ("FROM a\nNONSENSE x", "line 2: NONSENSE is not supported"),
        ("FROM a\nRUN --mount=type=cache x", "line 2: RUN does not support --mount=type=cache"),
        ("FROM a\nRUN cat <<EOF", "line 2: RUN does not support here-documents; write the file with COPY"),
        ("FROM a\nCOPY --from=x a b", "line 2: COPY does not support --from"),
        ("FROM a\nCOPY a", "line 2: COPY needs a source and a destination"),
        ("FROM a\nENV A=1 B", "line 2: ENV needs NAME=VALUE"),
        ("FROM a\nENV A='1", "line 2: ENV cannot be read: No closing quotation"),
        ("FROM a\nWORKDIR", "line 2: WORKDIR needs an argument"),
        ("FROM a\nRUN x \\", "line 2: the last line ends with a backslash"),
    ],
)
def test_unsupported_instruction_is_an_error_with_its_line(text: str, message: str) -> None:
    with pytest.raises(BuildFailure) as failure:
        parse_dockerfile(text)
    assert str(failure.value) == message
