"""The order in which programs look for an API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandpool.home import contexts
from sandpool.home.connection import NoTarget, Source, connect, resolve
from sandpool.home.contexts import Context
from sandpool.home.discovery import Home, announced
from sandpool.kube.kubeconfig import KubeconfigError
from tests.home.test_discovery import default_dir, home_in

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: {name}
clusters: [{{name: {name}, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
contexts: [{{name: {name}, context: {{cluster: {name}, user: {name}}}}}]
users: [{{name: {name}, user: {{}}}}]
"""


def kubeconfig(path: Path, name: str, port: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(KUBECONFIG.format(name=name, port=port))
    return path


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A user without anything."""
    return {"HOME": str(tmp_path / "home")}


@pytest.fixture
def home(environ: dict[str, str]) -> Iterator[Home]:
    described = home_in(default_dir(environ))
    kubeconfig(described.kubeconfig, "sandpool", 3)
    with announced(described, environ) as home:
        yield home


def test_the_order_is_flag_environment_choice_home_pod_default(
    environ: dict[str, str], home: Home, tmp_path: Path
) -> None:
    flag = kubeconfig(tmp_path / "flag", "flag", 1)
    listed = kubeconfig(tmp_path / "listed", "listed", 2)
    kubeconfig(Path(environ["HOME"]) / ".kube" / "config", "default", 5)
    chosen = kubeconfig(tmp_path / "chosen", "chosen", 4)
    contexts.choose(Context("chosen", chosen), environ)
    everything = {**environ, "KUBECONFIG": str(listed), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}

    assert resolve(flag, environ=everything).source is Source.FLAG
    assert connect(flag, environ=everything).server == "http://127.0.0.1:1"
    assert resolve(environ=everything).source is Source.ENVIRONMENT
    assert connect(environ=everything).server == "http://127.0.0.1:2"
    del everything["KUBECONFIG"]
    assert resolve(environ=everything).source is Source.CHOSEN
    assert connect(environ=everything).server == "http://127.0.0.1:4"
    contexts.choose(None, environ)
    assert resolve(environ=everything) == resolve(environ=environ)
    assert resolve(environ=everything).home == home
    assert connect(environ=everything).server == "http://127.0.0.1:3"


def test_without_a_home_the_pod_comes_before_the_default_file(environ: dict[str, str]) -> None:
    kubeconfig(Path(environ["HOME"]) / ".kube" / "config", "default", 5)
    assert resolve(environ={**environ, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}).source is Source.POD
    assert resolve(environ=environ).source is Source.DEFAULT
    assert connect(environ=environ).server == "http://127.0.0.1:5"


def test_the_message_says_what_to_do_when_nothing_is_found(environ: dict[str, str]) -> None:
    with pytest.raises(NoTarget, match="start a home with `sandpool up`, or set KUBECONFIG"):
        resolve(environ=environ)


def test_a_context_by_name_is_a_home_or_one_of_the_default_file(environ: dict[str, str], home: Home) -> None:
    with pytest.raises(KubeconfigError, match="there is no context prod"):
        resolve(context="prod", environ=environ)
    kubeconfig(Path(environ["HOME"]) / ".kube" / "config", "prod", 5)
    assert resolve(context="local", environ=environ).home == home
    assert connect(context="prod", environ=environ).server == "http://127.0.0.1:5"


def test_a_wrong_configuration_is_not_mended_by_starting_a_home(environ: dict[str, str], tmp_path: Path) -> None:
    for wrong in ({"KUBECONFIG": "/nowhere"}, {}):
        contexts.choose(Context("prod", tmp_path / "gone"), environ)
        with pytest.raises(KubeconfigError) as raised:
            resolve(environ={**environ, **wrong})
        assert not isinstance(raised.value, NoTarget)


def test_a_chosen_home_that_does_not_run(environ: dict[str, str]) -> None:
    contexts.choose(Context("local"), environ)
    with pytest.raises(NoTarget, match="the chosen context is the local home local, which does not run"):
        resolve(environ=environ)


def test_a_chosen_file_that_is_gone(environ: dict[str, str], tmp_path: Path) -> None:
    contexts.choose(Context("prod", tmp_path / "gone"), environ)
    with pytest.raises(KubeconfigError, match=r"prod is in .*/gone, which does not exist; choose another"):
        resolve(environ=environ)


def test_none_of_the_listed_files_exists(environ: dict[str, str], home: Home) -> None:
    with pytest.raises(KubeconfigError, match="none of the files in KUBECONFIG exists: /nowhere; unset KUBECONFIG"):
        resolve(environ={**environ, "KUBECONFIG": "/nowhere"})


def test_the_kubeconfig_of_a_home_leads_to_its_router(environ: dict[str, str], home: Home) -> None:
    assert resolve(home.kubeconfig, environ=environ).home == home
    assert resolve(environ={**environ, "KUBECONFIG": str(home.kubeconfig)}).home == home


def test_a_damaged_choice_says_how_to_mend_it(environ: dict[str, str]) -> None:
    path = Path(environ["HOME"]) / ".config" / "sandpool" / "context.json"
    path.parent.mkdir(parents=True)
    path.write_text("[]")
    with pytest.raises(KubeconfigError, match="choose a context again with `sandpool context use`"):
        resolve(environ=environ)
