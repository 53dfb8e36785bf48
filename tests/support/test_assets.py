from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import assets
from tests.support.assets import MissingAssets, find_assets


def put(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o755)


def test_variable_names_the_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put(tmp_path, "etcd", "kube-apiserver", "kubectl")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    found = find_assets()
    assert found.binary("etcd") == tmp_path / "etcd"
    assert found.has("kubectl")
    assert not found.has("kube-controller-manager")
    with pytest.raises(MissingAssets, match=r"no kube-controller-manager in"):
        found.binary("kube-controller-manager")


def test_variable_wins_even_if_it_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put(tmp_path, "etcd")
    (tmp_path / "kube-apiserver").write_text("not executable")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(MissingAssets, match=r"KUBEBUILDER_ASSETS=.*: no kube-apiserver in"):
        find_assets()


def test_built_assets_are_found_without_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built = tmp_path / "built"
    built.mkdir()
    put(built, "etcd", "kube-apiserver")
    script = tmp_path / "kube-assets"
    script.write_text(f'#!/bin/sh\n[ "$1" = --check ] && echo {built}\n')
    script.chmod(0o755)
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr(assets, "_BUILDER", script)
    assert find_assets().directory == built


def test_missing_assets_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "kube-assets"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr(assets, "_BUILDER", script)
    with pytest.raises(MissingAssets, match=r"set KUBEBUILDER_ASSETS, or build them with dev/kube-assets"):
        find_assets()
