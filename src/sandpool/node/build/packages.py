"""Steps that install packages, as shell scripts for the sandbox of a build.

On an image that has Python or apt, its own tools are used. A built-in image has the machine's /usr, so a virtual
environment is added for packages of Python, and packages of Debian that this machine does not have are downloaded by
its own apt and unpacked into a layer.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from sandpool.node.build.recipe import MOUNTED, BuildFailure, Configure, Packages, Run, Step
from sandpool.node.images.pip_settings import settings_file

VENV: Final = "/opt/venv"
_REQUIREMENTS: Final = "requirements.txt"
_PIP_CONFIGURATION: Final = "pip.conf"
_CERTIFICATE: Final = "ca.crt"
_SITE: Final = "site"
# How packages are fetched, not which ones: a step is not done again when one of these changes.
SETTINGS: Final = (_PIP_CONFIGURATION, _CERTIFICATE, _SITE)
_DEBS: Final = "debs"
_ROOT: Final = "0"
_OPTIONS: Final = "--no-cache-dir --progress-bar off --no-input"
_IN_VENV: Final = f"""
python3 -m pip --version >/dev/null 2>&1 || export PYTHONPATH={MOUNTED}/{_SITE}
if [ ! -e {VENV}/bin/python3 ]; then
    python3 -m venv --without-pip {VENV}
    for name in pip pip3; do
        printf '#!/bin/sh\\nexec %s -m pip --python {VENV} "$@"\\n' "$(command -v python3)" > {VENV}/bin/$name
        chmod 755 {VENV}/bin/$name
    done
fi
exec python3 -m pip --python {VENV} install {_OPTIONS} """
_IN_IMAGE: Final = f"""
python3 -m pip --version >/dev/null || exit 1
exec python3 -m pip install {_OPTIONS} """
_APT: Final = """
command -v apt-get >/dev/null || { echo 'the image has no apt-get'; exit 1; }
export DEBIAN_FRONTEND=noninteractive
apt-get -o APT::Sandbox::User=root update &&
apt-get -o APT::Sandbox::User=root install -y --no-install-recommends """
# Packages of a built-in image are unpacked by hand: its list of packages is this machine's, which is not in it. The
# scripts of packages run as far as they can; what they cannot do as a user without privileges is reported.
_UNPACK: Final = f"""
set -e
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
for deb in {MOUNTED}/{_DEBS}/*.deb; do
    echo "unpacking $(basename "$deb")"
    dpkg-deb --fsys-tarfile "$deb" | tar -x --no-same-owner --keep-directory-symlink -C /
done
for deb in {MOUNTED}/{_DEBS}/*.deb; do
    control=$(mktemp -d) && dpkg-deb -e "$deb" "$control"
    if [ -e "$control/postinst" ]; then
        export DEBIAN_FRONTEND=noninteractive DPKG_MAINTSCRIPT_NAME=postinst
        export DPKG_MAINTSCRIPT_PACKAGE=$(dpkg-deb -f "$deb" Package)
        "$control/postinst" configure "" </dev/null || echo "the script of $(basename "$deb") failed; continuing"
    fi
    rm -rf "$control"
done
"""


def pip_steps(
    wanted: Packages, *, on_built_in: bool, env: Mapping[str, str], settings: Mapping[str, str]
) -> list[Step]:
    """Steps for packages of Python; ``env`` is that of the image, and ``settings`` are those of pip."""
    files, directories = pip_files(settings)
    words = list(wanted.pip)
    if wanted.requirements:
        files[_REQUIREMENTS] = wanted.requirements
        words += ["-r", f"{MOUNTED}/{_REQUIREMENTS}"]
    advice = "" if on_built_in else "the image needs python3 and pip for --pip"
    if on_built_in and (pip := find_spec("pip")) is not None and pip.origin is not None:
        directories[_SITE] = Path(pip.origin).parents[1]
    script = (_IN_VENV if on_built_in else _IN_IMAGE) + shlex.join(words)
    steps: list[Step] = [Run(wanted.text, ("/bin/sh", "-c", script), files, directories, advice=advice)]
    if on_built_in:
        path = env.get("PATH", "")
        if VENV not in path:
            variables = {"PATH": f"{VENV}/bin:{path}", "VIRTUAL_ENV": VENV}
            steps.append(Configure(f"ENV VIRTUAL_ENV={VENV}", env=variables))
    return steps


def pip_files(settings: Mapping[str, str]) -> tuple[dict[str, bytes], dict[str, Path]]:
    """The configuration of pip for a build, and the directories and files of this machine that it refers to."""
    directories: dict[str, Path] = {}
    files: dict[str, bytes] = {}
    own = dict(settings)
    if (certificate := own.pop("cert", "")) and Path(certificate).is_file():
        files[_CERTIFICATE] = Path(certificate).read_bytes()
        own["cert"] = f"{MOUNTED}/{_CERTIFICATE}"
    places = []
    for number, place in enumerate(own.pop("find-links", "").split()):
        path = Path(place.removeprefix("file://"))
        if path.is_dir():
            directories[f"links-{number}"] = path
            places.append(f"{MOUNTED}/links-{number}")
        elif "://" in place:
            places.append(place)
    if places:
        own["find-links"] = " ".join(places)
    files[_PIP_CONFIGURATION] = settings_file(own)
    return files, directories


def variables_of_commands(host: Mapping[str, str]) -> dict[str, str]:
    """Variables that every command of a build gets and the image does not."""
    proxies = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SOURCE_DATE_EPOCH")
    return {
        "PIP_CONFIG_FILE": f"{MOUNTED}/{_PIP_CONFIGURATION}",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "PIP_BREAK_SYSTEM_PACKAGES": "1",
        **{name: host[name] for name in proxies if name in host},
    }


def apt_steps(wanted: Packages, *, on_built_in: bool, cache: Path) -> list[Step]:
    if not on_built_in:
        script = _APT + shlex.join(wanted.apt)
        return [Run(wanted.text, ("/bin/sh", "-c", script), user=_ROOT, advice="the image needs apt-get for --apt")]
    directory = _download(wanted.apt, cache)
    if directory is None:
        return []  # this machine has all of them
    return [Run(wanted.text, ("/bin/sh", "-c", _UNPACK), {}, {_DEBS: directory}, user=_ROOT)]


def _download(packages: Sequence[str], cache: Path) -> Path | None:
    """Download packages with their dependencies, except those that this machine has installed. Raises
    ``BuildFailure``."""
    program = shutil.which("apt-get")
    if program is None:
        raise BuildFailure(
            "--apt on a built-in image needs a machine with apt-get: import another image and build on it"
        )
    archives = cache / "debs" / "-".join(sorted(packages)).replace("/", "_")[:200]
    shutil.rmtree(archives, ignore_errors=True)
    (archives / "partial").mkdir(parents=True)
    options = [f"-oDir::Cache::archives={archives}", "-oDebug::NoLocking=1", "-oAPT::Sandbox::User=root", "-qq"]
    if not any(Path("/var/lib/apt/lists").glob("*_Packages*")):
        lists = cache / "lists"
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        options.append(f"-oDir::State::lists={lists}")
        _run(program, *options, "update")
    _run(program, *options, "install", "--yes", "--no-install-recommends", "--download-only", *packages)
    return archives if any(archives.glob("*.deb")) else None


def _run(*words: str) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        reason = next((line for line in lines if line.startswith("E: ")), lines[-1] if lines else "failed")
        raise BuildFailure(f"apt-get: {reason.removeprefix('E: ')}")
