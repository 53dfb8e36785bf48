from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from sandpool.node.images.pip_settings import host_settings, public_settings, settings_file


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").write_text(
        "[global]\nindex-url = https://user:secret@index.example/simple\n"
        "extra-index-url =\n  https://a.example/simple\n  https://b:c@b.example/simple\n"
        "[install]\ntimeout = 7\ncompile = no\n"
    )
    return tmp_path


def test_settings_say_where_packages_come_from(home: Path) -> None:
    found = host_settings({"HOME": str(home), "PIP_FIND_LINKS": "/opt/wheels", "PIP_QUIET": "1"})
    assert found["index-url"] == "https://user:secret@index.example/simple"
    assert found["extra-index-url"] == "https://a.example/simple https://b:c@b.example/simple"
    assert (found["find-links"], found["timeout"]) == ("/opt/wheels", "7")
    assert not {"compile", "quiet"} & found.keys()


def test_variables_override_files(home: Path) -> None:
    assert host_settings({"HOME": str(home), "PIP_TIMEOUT": "9"})["timeout"] == "9"


def test_a_sandbox_is_told_no_secrets_and_no_paths(home: Path) -> None:
    found = public_settings({**host_settings({"HOME": str(home), "PIP_FIND_LINKS": "/opt/wheels https://w.example/"})})
    text = settings_file(found).decode()
    assert "secret" not in text and "b:c" not in text and "/opt/wheels" not in text
    parser = configparser.RawConfigParser()
    parser.read_string(text)
    assert parser.get("global", "extra-index-url").split() == ["https://a.example/simple"]
    assert parser.get("global", "find-links") == "https://w.example/"
    assert not parser.has_option("global", "index-url")


def test_a_damaged_file_is_left_to_pip(tmp_path: Path) -> None:
    (tmp_path / ".pip").mkdir()
    (tmp_path / ".pip/pip.conf").write_text("no section")
    assert host_settings({"HOME": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}) == {}
    host_settings({"HOME": str(tmp_path)})
