"""Files through the tar of this machine: the commands run here, in a directory that plays the sandbox."""

from __future__ import annotations

import asyncio
import io
import os
import resource
import signal
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sandpool.service.commands import Commands
from sandpool.service.errors import FileError
from sandpool.service.files import Files
from sandpool.service.filesystem import DiskFull
from sandpool.service.sandboxes import Sandbox
from tests.support.fake_pod_client import FakePodClient, PlayedSession

BOX = Sandbox.from_object({"metadata": {"name": "box", "namespace": "space"}, "spec": {}})
ODD = ("a b", "-dash", "ünïcode", "new\nline", "quote'\"$(x)", "x" * 150, os.fsdecode(b"bytes\xff"), "*")


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """The working directory of the sandbox."""
    (tmp_path / "inside").mkdir()
    return tmp_path / "inside"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    return tmp_path / "outside"


@pytest.fixture
def files(inside: Path) -> Files:
    return files_of(inside)


def files_of(
    inside: Path,
    largest: int | None = None,
    user: int | None = None,
    wrapper: Sequence[str] = (),
) -> Files:
    """Files of a sandbox with a user in which no file may have more than ``largest`` bytes.

    ``wrapper`` is a command that runs the commands of the sandbox."""

    def limit_files() -> None:
        if largest is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))

    async def play(session: PlayedSession) -> int:
        process = await asyncio.create_subprocess_exec(
            *wrapper,
            *session.options.command,
            cwd=inside,
            preexec_fn=limit_files,
            user=user,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        typed = b""
        if session.options.stdin:
            while piece := await session.input.get():
                typed += piece
        output, errors = await process.communicate(typed)
        for start in range(0, len(output), 1000):
            session.write(output[start : start + 1000])
        session.write(errors, stream=2)
        assert process.returncode is not None
        return process.returncode

    return Files(Commands(FakePodClient(play)))


def make_tree(root: Path) -> None:
    (root / "empty").mkdir(parents=True)
    for name in ODD:
        (root / name).write_text(name.encode("unicode_escape").decode())
        (root / "deep" / name).mkdir(parents=True)
        (root / "deep" / name / "file").write_bytes(os.urandom(2000))
    (root / "program").write_text("#!/bin/sh\n")
    (root / "program").chmod(0o755)
    (root / "link").symlink_to("program")


def below(root: Path) -> set[str]:
    """The files and links below a directory."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or not path.is_dir()}


def size_of(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def described(root: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_dir():
            found[name] = "directory"
        else:
            found[name] = (path.read_bytes(), path.stat().st_mode & 0o777, int(path.stat().st_mtime))
    return found


async def test_a_tree_with_odd_names_goes_in_and_comes_out_unchanged(files: Files, inside: Path, outside: Path) -> None:
    make_tree(outside / "tree")
    copied: list[int] = []
    await files.upload(BOX, outside / "tree", "copy", progress=copied.append)
    assert described(inside / "copy") == described(outside / "tree")
    assert sum(copied) == size_of(outside)
    await files.download(BOX, "copy", outside / "back")
    assert described(outside / "back") == described(outside / "tree")


async def test_destinations_mean_what_they_mean_for_cp(files: Files, inside: Path, outside: Path) -> None:
    (outside / "file").write_text("x")
    (inside / "there").mkdir()
    await files.upload(BOX, outside / "file", "")
    await files.upload(BOX, outside / "file", "renamed")
    await files.upload(BOX, outside / "file", "there")
    await files.upload(BOX, outside / "file", "new/")
    await files.upload(BOX, outside / "file", f"{inside}/made/on/the/way")
    await files.upload(BOX, outside / "file", "-dash")
    expected = {"file", "renamed", "there/file", "new/file", "made/on/the/way", "-dash"}
    assert below(inside) == expected
    (outside / "tree").mkdir()
    (outside / "tree/one").write_text("1")
    await files.upload(BOX, outside / "tree", "there")
    await files.upload(BOX, f"{outside}/tree/.", "content")
    assert (inside / "there/tree/one").read_text() == (inside / "content/one").read_text() == "1"

    (outside / "local").mkdir()
    await files.download(BOX, "file", outside / "local")
    await files.download(BOX, "file", outside / "local/renamed")
    await files.download(BOX, "-dash", outside / "local")
    await files.download(BOX, "there/", outside / "local")
    await files.download(BOX, "content/.", outside / "local")
    expected = {"file", "renamed", "-dash", "there/file", "there/tree/one", "one"}
    assert below(outside / "local") == expected


async def test_copy_errors_are_reported(files: Files, inside: Path, outside: Path) -> None:
    with pytest.raises(FileError, match="there is no file or directory"):
        await files.upload(BOX, outside / "missing", "x")
    with pytest.raises(FileError, match=r"cannot read missing in the sandbox: .*missing.*No such file"):
        await files.download(BOX, "missing", outside)
    with pytest.raises(FileError, match=r"the directory .*/no does not exist"):
        await files.download(BOX, ".", outside / "no/where")
    (inside / "file").write_text("x")
    with pytest.raises(FileError, match="file in the sandbox is a file; a directory cannot replace it"):
        await files.upload(BOX, outside, "file")
    with pytest.raises(FileError, match="cannot write file/below in the sandbox"):
        (outside / "other").write_text("y")
        await files.upload(BOX, outside / "other", "file/below")
    with pytest.raises(FileError, match="cannot read nope/x in the sandbox"):
        await files.download(BOX, "nope/x", outside)
    warnings: list[str] = []
    os.mkfifo(outside / "pipe")
    await files.upload(BOX, outside, "all", warn=warnings.append)
    assert warnings == [f"left out {outside}/pipe: it is neither a file, a directory nor a link"]


@pytest.mark.parametrize("destination", ["", "new", "existing"])
async def test_upload_that_ends_early_changes_nothing(inside: Path, outside: Path, destination: str) -> None:
    """The room of the sandbox ends in the middle of a file: it must not stay there as if it were complete."""
    (inside / "existing").mkdir()
    for place in (inside, inside / "existing"):
        (place / "large").write_text("old")
    before = described(inside)
    (outside / "large").write_bytes(bytes(200_000))
    with pytest.raises(FileError, match=r"cannot write .* in the sandbox"):
        await files_of(inside, largest=100_000).upload(BOX, outside / "large", destination)
    (outside / "small").write_text("small")
    with pytest.raises(FileError, match=r"cannot write .* in the sandbox"):
        await files_of(inside, largest=100_000).upload(BOX, f"{outside}/.", destination)
    after = {name: about for name, about in described(inside).items() if about != "directory"}
    assert after == {name: about for name, about in before.items() if about != "directory"}


async def test_uploaded_tree_is_merged_into_an_existing_one(files: Files, inside: Path, outside: Path) -> None:
    make_tree(outside / "tree")
    (outside / "tree/link to a directory").symlink_to("deep")
    await files.upload(BOX, outside / "tree", "")
    (inside / "tree/deep/own").write_text("stays")
    (inside / "tree/program").write_text("replaced")
    expected = described(outside / "tree")
    await files.upload(BOX, outside / "tree", "")
    stays = described(inside / "tree").pop("deep/own")
    assert described(inside / "tree") == {**expected, "deep/own": stays}
    assert os.listdir(inside) == ["tree"]


async def test_read_only_directories_are_uploaded_by_a_user_without_privileges(inside: Path, outside: Path) -> None:
    user = os.getuid() or 65534
    os.chown(inside, user, -1)
    for directory in ("tree", "tree/sub"):
        (outside / directory).mkdir()
        (outside / directory / "file").write_text("x")
    for directory in ("tree/sub", "tree"):
        (outside / directory).chmod(0o555)
    box = files_of(inside, user=user)
    await box.upload(BOX, outside / "tree", "")
    assert described(inside / "tree") == described(outside / "tree")
    assert [(inside / each).stat().st_mode & 0o777 for each in ("tree", "tree/sub")] == [0o555, 0o555]
    for directory in ("tree", "tree/sub"):
        (inside / directory).chmod(0o755)
    await box.upload(BOX, outside / "tree", "")
    assert described(inside / "tree") == described(outside / "tree")
    (outside / "tree/large").write_bytes(bytes(200_000))
    with pytest.raises(FileError, match="cannot write other"):
        await files_of(inside, user=user, largest=100_000).upload(BOX, outside / "tree", "other")
    assert os.listdir(inside) == ["tree"]


async def test_file_does_not_replace_a_directory_of_a_tree(files: Files, inside: Path, outside: Path) -> None:
    (inside / "tree/name").mkdir(parents=True)
    (outside / "tree").mkdir()
    (outside / "tree/name").write_text("file")
    with pytest.raises(FileError, match="tree/name: Is a directory"):
        await files.upload(BOX, outside / "tree", "")
    assert (inside / "tree/name").is_dir() and os.listdir(inside) == ["tree"]


def archive(*members: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return buffer.getvalue()


def member(name: str, link: str | None = None, size: int = 1) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = 0 if link is not None else size
    if link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, link
    return info


async def test_a_hostile_archive_writes_nothing_outside_the_destination(outside: Path) -> None:
    sent = archive(
        member("tree/good"),
        member("../up"),
        member("/absolute"),
        member("other"),
        member("tree/../../up"),
        member("tree/escape", link="../../.."),
        member("tree/escape/written"),
        member("tree/root", link="/"),
    )

    async def play(session: PlayedSession) -> int:
        session.write(sent)
        return 0

    warnings: list[str] = []
    (outside / "into").mkdir()
    await Files(Commands(FakePodClient(play))).download(BOX, "tree", outside / "into", warn=warnings.append)
    assert below(outside) == {"into/tree/escape/written", "into/tree/good"}
    assert len(warnings) == 6


async def test_a_broken_archive_is_an_error(outside: Path) -> None:
    async def play(session: PlayedSession) -> int:
        session.write(archive(member("tree/good", size=5000))[:2000])
        return 0

    with pytest.raises(FileError, match="the sandbox sent a broken archive"):
        await Files(Commands(FakePodClient(play))).download(BOX, "tree", outside / "into")


@pytest.mark.parametrize(
    ("name", "kind", "link"),
    [
        ("tree/fifo", tarfile.FIFOTYPE, ""),
        ("tree/device", tarfile.CHRTYPE, ""),
        ("tree/hard", tarfile.LNKTYPE, "/etc/passwd"),
        ("tree/hard", tarfile.LNKTYPE, "tree/../../secret"),
        ("tree/soft", tarfile.SYMTYPE, "../../secret"),
        ("tree/through/file", tarfile.REGTYPE, ""),
        ("tree/sibling", tarfile.SYMTYPE, "../.ssh"),
        ("tree/sibling", tarfile.LNKTYPE, ".bashrc"),
        ("tree", tarfile.SYMTYPE, ".ssh"),
    ],
)
async def test_member_that_is_no_file_or_leads_out_is_left_out(
    outside: Path, name: str, kind: bytes, link: str
) -> None:
    (outside / "into" / "tree").mkdir(parents=True)
    (outside / "into" / "tree" / "through").symlink_to(outside)  # of the user, or of an earlier archive
    (outside / "into" / ".bashrc").write_text("mine")
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o6777
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as made:
        made.addfile(info, io.BytesIO())

    async def play(session: PlayedSession) -> int:
        session.write(packed.getvalue())
        return 0

    warnings: list[str] = []
    await Files(Commands(FakePodClient(play))).download(BOX, "tree", outside / "into", warn=warnings.append)
    assert len(warnings) == 1
    assert below(outside) == {"into/tree/through", "into/.bashrc"}


def directory(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o755
    return info


def hard_link(name: str, to: str) -> tarfile.TarInfo:
    info = member(name, link=to)
    info.type, info.mode = tarfile.LNKTYPE, 0o755
    return info


async def test_links_through_links_of_the_archive_do_not_lead_out(outside: Path) -> None:
    (outside / "into").mkdir()
    (outside / "secret").write_text("mine")
    (outside / "secret").chmod(0o600)
    sent = archive(
        *(directory(f"tree/{name}") for name in ("", "x", "a", "a/b", "a/b/c")),
        member("tree/a/b/c/far", link="../../../x"),  # leads to a directory that is less deep than it reads
        member("tree/out", link="a/b/c/far/../../.."),
        hard_link("tree/taken", "tree/a/b/c/far/../../../secret"),
        hard_link("tree/../tree/same", "tree/x/../kept"),
        member("tree/kept"),
        member("tree/a/up", link="../x"),
    )

    async def play(session: PlayedSession) -> int:
        session.write(sent)
        return 0

    warnings: list[str] = []
    await Files(Commands(FakePodClient(play))).download(BOX, "tree", outside / "into", warn=warnings.append)
    status = (outside / "secret").stat()
    assert (status.st_mode & 0o777, status.st_nlink) == (0o600, 1)
    assert below(outside) == {"secret", "into/tree/a/b/c/far", "into/tree/a/up", "into/tree/kept"}
    assert len(warnings) == 3


async def test_downloaded_files_have_no_special_bits(outside: Path) -> None:
    info = tarfile.TarInfo("tree/file")
    info.mode, info.uid = 0o6777, 12345
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as made:
        made.addfile(info, io.BytesIO())

    async def play(session: PlayedSession) -> int:
        session.write(packed.getvalue())
        return 0

    (outside / "into").mkdir()
    await Files(Commands(FakePodClient(play))).download(BOX, "tree", outside / "into")
    status = (outside / "into" / "tree" / "file").stat()
    assert (status.st_mode & 0o7777, status.st_uid) == (0o755, os.getuid())


@pytest.mark.parametrize("destination", ["", "new/place/"])
async def test_full_disk_of_the_sandbox_is_named(inside: Path, outside: Path, destination: str) -> None:
    """No file may be as large as the block that the check writes."""
    (outside / "file").write_bytes(bytes(200_000))
    with pytest.raises(DiskFull, match="in the sandbox: its disk is full"):
        await files_of(inside, largest=50_000).upload(BOX, outside / "file", destination)
    assert below(inside) == set()


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a small disk")
@pytest.mark.parametrize("mounted", [".", "tree/disk"])
async def test_disk_without_free_blocks_is_full(inside: Path, outside: Path, mounted: str) -> None:
    (inside / mounted).mkdir(parents=True, exist_ok=True)
    (outside / "tree/disk").mkdir(parents=True)
    (outside / "tree/disk/file").write_bytes(bytes(200_000))
    mounting = (
        "unshare",
        "--mount",
        "sh",
        "-c",
        f'mount -t tmpfs -o size=64k none {mounted} && cd . && exec "$@"',
        "sh",
    )
    box = files_of(inside, wrapper=mounting)
    with pytest.raises(DiskFull, match="in the sandbox: its disk is full"):
        await box.upload(BOX, outside / "tree", "")


@pytest.mark.parametrize(
    "errors", [b"tar: file: Wrote only 2560 of 10240 bytes\n", b"No space left on device: a name\n"]
)
async def test_text_of_tar_is_shown_and_not_interpreted(outside: Path, errors: bytes) -> None:
    (outside / "file").write_text("x")
    with pytest.raises(FileError, match=errors.decode().strip()) as error:
        await played(b"", errors, 2).upload(BOX, outside / "file", "")
    assert not isinstance(error.value, DiskFull)


async def test_copy_that_ends_early_leaves_no_partial_file(outside: Path) -> None:
    info = tarfile.TarInfo("file")
    info.size = 100_000
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as made:
        made.addfile(info, io.BytesIO(bytes(info.size)))

    async def play(session: PlayedSession) -> int:
        session.write(packed.getvalue()[:50_000])
        return 0

    with pytest.raises(FileError):
        await Files(Commands(FakePodClient(play))).download(BOX, "file", outside / "copy")
    assert not (outside / "copy").exists()


async def test_full_local_disk_leaves_no_partial_file(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tarfile.TarInfo("file")
    info.size = 100_000
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as made:
        made.addfile(info, io.BytesIO(bytes(info.size)))

    async def play(session: PlayedSession) -> int:
        session.write(packed.getvalue())
        return 0

    def fill(source: object, target: io.BufferedWriter, *_: object, **__: object) -> None:
        target.write(b"part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile, "copyfileobj", fill)
    with pytest.raises(FileError, match="No space left on device"):
        await Files(Commands(FakePodClient(play))).download(BOX, "file", outside / "copy")
    assert not (outside / "copy").exists()


def played(output: bytes, errors: bytes = b"", code: int = 0) -> Files:
    """Files of a sandbox whose programs all write the same."""

    async def play(session: PlayedSession) -> int:
        for start in range(0, len(output), 1 << 16):
            session.write(output[start : start + (1 << 16)])
        session.write(errors, stream=2)
        return code

    return Files(Commands(FakePodClient(play)))


def headers(kind: bytes, count: int, size: int) -> bytes:
    info = tarfile.TarInfo("tree/x")
    info.type, info.size = kind, size
    return (info.tobuf(tarfile.GNU_FORMAT) + b"x" * size + bytes(-size % 512)) * count


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
async def test_long_headers_of_an_archive_are_refused_before_they_are_read(outside: Path, kind: bytes) -> None:
    sent = archive(member("tree/good"))[:1024] + headers(kind, 1, 4 << 20)
    with pytest.raises(FileError, match="broken archive: its headers are too long"):
        await played(sent).download(BOX, "tree", outside / "into")


async def test_long_contents_are_no_headers(outside: Path) -> None:
    sent = archive(member("tree/one", size=3 << 20), member("tree/two", size=3 << 20))
    await played(sent).download(BOX, "tree", outside / "into")
    assert size_of(outside) == 6 << 20


async def test_members_of_an_archive_are_not_collected(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    plain_next = tarfile.TarFile.next

    def counting_next(opened: Any) -> tarfile.TarInfo | None:
        kept.append(len(opened.members) + len(opened.pax_headers))
        return plain_next(opened)

    monkeypatch.setattr(tarfile.TarFile, "next", counting_next)
    await played(archive(*(member(f"tree/{number}") for number in range(50)))).download(BOX, "tree", outside / "into")
    assert len(kept) > 50
    assert max(kept) <= 1


async def test_endless_errors_of_a_sandbox_are_cut(outside: Path) -> None:
    (outside / "file").write_text("x")
    flood = played(b"", b"x" * (8 << 20), code=2)
    with pytest.raises(FileError) as failed:
        await flood.download(BOX, "tree", outside / "into")
    assert len(str(failed.value)) < 1 << 17
    with pytest.raises(FileError) as failed:
        await flood.upload(BOX, outside / "file", "")
    assert len(str(failed.value)) < 1 << 17


@pytest.mark.parametrize("answer", [b"what?", b"\xff"])
async def test_odd_answer_about_a_destination_is_an_error(outside: Path, answer: bytes) -> None:
    (outside / "file").write_text("x")
    with pytest.raises(FileError, match="cannot look at there in the sandbox"):
        await played(answer).upload(BOX, outside / "file", "there")
