"""Backups of a data directory that a server uses, and what is restored from them."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from threading import Event

import orjson
import pytest

from sandpool.api.kinds import CONFIG_MAP, SANDBOX_CLAIM
from sandpool.engine.clock import SystemClock
from sandpool.kube.client import Client
from sandpool.kube.errors import Gone
from sandpool.server.api_server import ApiServer
from sandpool.server.store.backup import REVISION_GAP, BackupError, back_up, back_up_to_file, restore
from sandpool.server.store.journal import (
    DATABASE,
    REPLACED,
    RESTORED,
    Batch,
    Journal,
    Row,
    StoreDamaged,
    finish_restore,
)
from sandpool.server.store.volume_mark import VolumeMark
from sandpool.testing.objects import new

COUNT = 5000
ADDED = {("configmaps", "default", f"c{number}") for number in range(2)}  # by ``fill(client, 2)``


def unseen(done: int, total: int) -> None:
    """Show no progress."""


def packed(data_dir: Path) -> bytes:
    output = io.BytesIO()
    back_up(data_dir, output, SystemClock(), unseen)
    return output.getvalue()


def unpacked(data: bytes) -> list[bytes]:
    return gzip.decompress(data).splitlines(keepends=True)


def contents(data_dir: Path) -> dict[tuple[str, str, str], bytes]:
    opened = Journal(data_dir)
    try:
        return {row[1:4]: row.value for row in opened.load()}
    finally:
        opened.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = ApiServer(tmp_path / "home")
    await server.start()
    yield server
    await server.stop()


async def fill(client: Client, count: int) -> None:
    for number in range(count):
        await client.create(CONFIG_MAP, new(CONFIG_MAP, f"c{number}", data={"n": str(number)}), "default")


async def restored_copy(source: bytes, directory: Path) -> ApiServer:
    restore(io.BytesIO(source), directory, unseen)
    server = ApiServer(directory)
    await server.start()
    return server


async def test_objects_come_back_as_they_were_with_their_uids(server: ApiServer, tmp_path: Path) -> None:
    client = server.client()
    claim = new(SANDBOX_CLAIM, "mine", spec={"warmPoolRef": {"name": "p"}})
    await client.create(SANDBOX_CLAIM, claim, "default")
    await fill(client, 3)
    (server.data_dir / "admin-token").write_text("token")
    reports: list[tuple[int, int]] = []
    output = io.BytesIO()
    made = back_up(server.data_dir, output, SystemClock(), lambda done, total: reports.append((done, total)))
    copy = await restored_copy(output.getvalue(), tmp_path / "copy")
    try:
        for type in (SANDBOX_CLAIM, CONFIG_MAP):
            before = (await client.list(type, "default"))["items"]
            assert (await copy.client().list(type, "default"))["items"] == before
            assert before
    finally:
        await copy.stop()
    assert made.objects == server.store._rows
    assert reports[-1] == (made.objects, made.objects)
    for name in ("admin-token", "service-account.key"):
        kept = tmp_path / "copy" / name
        assert kept.read_bytes() == (server.data_dir / name).read_bytes()
        assert kept.stat().st_mode & 0o777 == 0o600


def put(opened: Journal, numbers: range, prefix: str, rows: int) -> None:
    """Commit objects, and wait until they are on disk."""
    batch = Batch(revision=numbers.stop, rows=rows)
    for number in numbers:
        value = orjson.dumps({"metadata": {"name": f"{prefix}{number}"}, "noise": os.urandom(200).hex()})
        batch.add(Row(number, "configmaps", "default", f"{prefix}{number}", number, value))
    done, errors = Event(), list[Exception | None]()

    def finished(error: Exception | None) -> None:
        errors.append(error)
        done.set()

    opened.commit(batch, finished)
    assert done.wait(60)
    assert errors == [None]


def test_backup_is_one_state_of_a_store_that_is_written_meanwhile(tmp_path: Path) -> None:
    """A write is on disk between any two reports of the progress."""
    opened = Journal(tmp_path / "home")
    put(opened, range(1, COUNT + 1), "o", COUNT)
    output, reports = io.BytesIO(), list[tuple[int, int]]()

    def write(done: int, total: int) -> None:
        reports.append((done, total))
        number = COUNT + len(reports)
        put(opened, range(number, number + 1), "late", number)

    made = back_up(tmp_path / "home", output, SystemClock(), write)
    opened.close()
    assert (made.objects, reports[-1]) == (COUNT, (COUNT, COUNT))
    assert len(reports) > 5
    restored = restore(io.BytesIO(output.getvalue()), tmp_path / "copy", unseen)
    assert restored.objects == COUNT
    before = {key: value for key, value in contents(tmp_path / "home").items() if not key[2].startswith("late")}
    assert contents(tmp_path / "copy") == before


async def test_watches_from_before_start_over(server: ApiServer, tmp_path: Path) -> None:
    """Whatever a client saw after the backup was made, it does not wait for events that came before."""
    data = packed(server.data_dir)
    await fill(server.client(), 5)
    seen = (await server.client().list(CONFIG_MAP))["metadata"]["resourceVersion"]
    copy = await restored_copy(data, tmp_path / "copy")
    try:
        assert copy.store.revision >= REVISION_GAP
        with pytest.raises(Gone):
            async for _ in copy.client().watch(CONFIG_MAP, "default", resource_version=seen):
                pass
    finally:
        await copy.stop()


async def test_restored_volume_is_known_by_the_one_of_the_backup_and_its_revision(
    server: ApiServer, tmp_path: Path
) -> None:
    unmarked = packed(tmp_path / "home")
    mark = VolumeMark("original")
    mark.write(tmp_path / "home")
    saved, revision = packed(tmp_path / "home"), server.store.revision
    restored = tmp_path / "restored"
    restore(io.BytesIO(saved), restored, unseen)
    assert VolumeMark.read(restored) == VolumeMark("original", revision)
    restore(io.BytesIO(packed(restored)), tmp_path / "again", unseen)
    assert VolumeMark.read(tmp_path / "again") == VolumeMark("original", revision), "nothing was added meanwhile"
    restore(io.BytesIO(unmarked), restored, unseen, replace=True)
    assert VolumeMark.read(restored) == VolumeMark("", revision), "and not the mark that was there"


async def test_running_server_and_present_objects_are_left_alone(server: ApiServer, tmp_path: Path) -> None:
    data = packed(server.data_dir)
    with pytest.raises(BackupError, match=r"a server uses .*: stop it first"):
        restore(io.BytesIO(data), server.data_dir, unseen, replace=True)
    restore(io.BytesIO(data), tmp_path / "copy", unseen)
    before = contents(tmp_path / "copy")
    with pytest.raises(BackupError, match=r"has objects already: restore into another directory, or pass --replace"):
        restore(io.BytesIO(data), tmp_path / "copy", unseen)
    assert contents(tmp_path / "copy") == before


async def test_replaced_database_is_kept(server: ApiServer, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    restore(io.BytesIO(packed(server.data_dir)), copy, unseen)
    before = contents(copy)
    await fill(server.client(), 2)
    restore(io.BytesIO(packed(server.data_dir)), copy, unseen, replace=True)
    assert contents(copy).keys() >= ADDED
    (copy / REPLACED / "moved").mkdir()
    (copy / REPLACED / DATABASE).rename(copy / REPLACED / "moved" / DATABASE)
    assert contents(copy / REPLACED / "moved") == before


@pytest.mark.parametrize("damage", ["changed", "cut", "line", "count", "text", "more"])
async def test_damaged_backup_changes_nothing(server: ApiServer, tmp_path: Path, damage: str) -> None:
    await fill(server.client(), 3)
    data, copy = packed(server.data_dir), tmp_path / "copy"
    restore(io.BytesIO(data), copy, unseen)
    before, lines = contents(copy), unpacked(data)
    broken = {
        "changed": gzip.compress(b"".join(lines).replace(b'"n":"2"', b'"n":"3"')),
        "cut": data[: len(data) // 2],
        "line": gzip.compress(b"".join(lines[:-1])),
        "count": gzip.compress(b"".join([*lines[:-2], lines[-1]])),
        "text": b"no backup",
        "more": gzip.compress(b"".join([*lines, lines[-1]])),
    }[damage]
    with pytest.raises(BackupError, match=r"the backup is damaged: .*Nothing was changed|this is no backup"):
        restore(io.BytesIO(broken), copy, unseen, replace=True)
    assert contents(copy) == before
    assert not (copy / RESTORED).exists()
    assert not (copy / "restore-draft").exists()


async def test_backup_of_another_format_and_with_foreign_files_is_refused(server: ApiServer, tmp_path: Path) -> None:
    lines = unpacked(packed(server.data_dir))
    later = gzip.compress(lines[0].replace(b'"format":1', b'"format":2'))
    with pytest.raises(BackupError, match=r"has format 2 .*Use the version that wrote it"):
        restore(io.BytesIO(later), tmp_path / "copy", unseen)
    for name in ("../escaped", "node/x", "pki/../x", ".hidden-token"):
        evil = gzip.compress(lines[0] + orjson.dumps({"file": name, "data": ""}) + b"\n")
        with pytest.raises(BackupError, match=r"has a file with the name"):
            restore(io.BytesIO(evil), tmp_path / "copy", unseen)
    assert not (tmp_path / "escaped").exists()


async def test_damaged_store_gives_no_backup(tmp_path: Path) -> None:
    server = ApiServer(tmp_path / "home")
    await server.start()
    await fill(server.client(), 3)
    await server.stop()
    database = server.data_dir / DATABASE
    database.write_bytes(database.read_bytes().replace(b'{"n":"2"}', b'{"n":"3"}'))
    with pytest.raises(StoreDamaged, match=r'configmaps "default/c2" do not match their checksum'):
        back_up_to_file(server.data_dir, tmp_path / "file", SystemClock(), unseen)
    assert not {"file", "file.part"}.intersection(os.listdir(tmp_path))


async def test_backup_replaces_no_file_unless_told_and_is_private(server: ApiServer, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(BackupError, match=r"exists: choose another name, or replace it with --force"):
        back_up_to_file(server.data_dir, file, SystemClock(), unseen)
    assert file.read_text() == "precious"
    made = back_up_to_file(server.data_dir, file, SystemClock(), unseen, force=True)
    assert (file.stat().st_size, file.stat().st_mode & 0o777) == (made.bytes, 0o600)
    with pytest.raises(BackupError, match=r"has no database: name the directory of a server"):
        back_up_to_file(tmp_path / "missing", tmp_path / "other", SystemClock(), unseen)


@pytest.mark.parametrize("steps", range(1, 12))
async def test_restore_that_is_killed_at_any_step_is_finished_by_the_next_start(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    copy = tmp_path / "copy"
    restore(io.BytesIO(packed(server.data_dir)), copy, unseen)
    await fill(server.client(), 2)
    data, left = packed(server.data_dir), steps
    rename = Path.replace

    def dying(self: Path, target: Path) -> Path:
        nonlocal left
        if copy in self.parents and "replaced" not in self.parts and not self.name.startswith("."):
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", dying)
    with contextlib.suppress(KeyboardInterrupt):
        restore(io.BytesIO(data), copy, unseen, replace=True)
    monkeypatch.undo()
    assert contents(copy).keys() >= ADDED
    assert not (copy / RESTORED).exists()
    assert not finish_restore(copy)


def test_killed_commands_leave_what_the_next_run_cleans_up(tmp_path: Path) -> None:
    """SIGTERM removes drafts at once; after SIGKILL the next run does."""
    home, file = tmp_path / "home", tmp_path / "file"
    opened = Journal(home)
    put(opened, range(1, 20_001), "o", 20_000)
    opened.close()
    command = [sys.executable, "-m", "sandpool.cli.main", "backup", str(file), "--data-dir", str(home)]
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stderr is not None
        process.stderr.readline()  # the first report of the progress
        process.send_signal(number)
        process.communicate()
        assert process.returncode != 0 or file.exists()
        file.unlink(missing_ok=True)
    finished = subprocess.run([*command], capture_output=True, text=True, check=True)
    assert "20000 objects of" in finished.stdout
    assert "backing up: 500 of 20000 objects\n" in finished.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "home"]
    into = [sys.executable, "-m", "sandpool.cli.main", "restore", str(file), "--data-dir", str(tmp_path / "copy")]
    process = subprocess.Popen(into, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stderr is not None
    process.stderr.readline()
    process.kill()
    process.communicate()
    finished = subprocess.run([*into, "--replace"], capture_output=True, text=True, check=True)
    assert "restored 20000 objects to" in finished.stdout
    assert len(contents(tmp_path / "copy")) == 20_000


async def test_full_disk_is_said_and_leaves_nothing(server: ApiServer, small_disk: Path) -> None:
    for number in range(80):
        data = {"k": os.urandom(60_000).hex()}
        await server.client().create(CONFIG_MAP, new(CONFIG_MAP, f"big{number}", data=data), "default")
    with pytest.raises(BackupError, match=r"No space left on device. No file was left"):
        back_up_to_file(server.data_dir, small_disk / "file", SystemClock(), unseen)
    assert not os.listdir(small_disk)
    with pytest.raises(BackupError, match=r"is full: a restore needs room for a second database. Nothing was changed"):
        restore(io.BytesIO(packed(server.data_dir)), small_disk / "copy", unseen)
    assert {path.name for path in (small_disk / "copy").iterdir()} == {"lock"}


async def test_backup_and_restore_through_standard_streams(server: ApiServer, tmp_path: Path) -> None:
    """As through ``kubectl exec``."""

    def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "sandpool.cli.main", *arguments]
        return subprocess.run(command, capture_output=True, input=stdin, check=False)

    saved = await asyncio.to_thread(run, "backup", "-", "--data-dir", str(server.data_dir))
    assert b"objects of" in saved.stderr
    restored = await asyncio.to_thread(run, "restore", "-", "--data-dir", str(tmp_path / "copy"), stdin=saved.stdout)
    assert (restored.returncode, restored.stdout.startswith(b"restored ")) == (0, True)
    refused = await asyncio.to_thread(run, "restore", "-", "--data-dir", str(server.data_dir), stdin=saved.stdout)
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert b"Error: a server uses" in refused.stderr
