"""Builds the root file system of a container in a mount namespace of its own.

Root builds it in a *staging* tmpfs, which has the container's root (``/sandbox``) with everything mounted in its place,
the bwrap program, and the few files of the host that bwrap needs. Then the staging tmpfs becomes the root of this
process, and the host's file system is detached from it. bwrap later shows the container ``/sandbox``; the process that
watches the container can reach the staging tmpfs only. Nothing is mounted on the host, so nothing has to be unmounted:
the mounts go with the last process in them. The host's mounts are not held either, so they can be unmounted while the
container runs.

**Links.** Image layers and volumes are written by others and may have symbolic links to anywhere, which root would
follow. Every path in the container is therefore resolved with the container's root as the root directory
(``syscalls.open_within``), and every mount point is made that way before bwrap starts. bwrap finds all of them and
makes none. (bwrap's own way to make them has CVE-2026-87766.)

**Owners.** A container has one user, which is ``PodSandbox.host_uid`` on the host. Files of an image keep their owners,
except that those of the container's user appear as the sandbox's (an ID-mapped mount): a container that runs as root
can change root's files in its own copy.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from sandpool.node.launcher import syscalls
from sandpool.node.launcher.idmap import user_namespace
from sandpool.node.launcher.root_directory import Root, make_below, path_of, restrict_mount
from sandpool.node.launcher.unprivileged import is_unprivileged
from sandpool.node.runtimes.runtime import (
    Bind,
    ContainerSpec,
    DataFile,
    HostToolchain,
    ImageLayers,
    PodSandbox,
    RuntimeFailure,
    Tmpfs,
)

SANDBOX: Final = "/sandbox"
PROGRAMS: Final = "/programs"
CGROUPS: Final = "/sys/fs/cgroup"

# Any world-accessible directory will do. The staging tmpfs covers it in the new mount namespace only.
_STAGING: Final = "/tmp"
_STAGING_SIZE: Final = 16 << 20
_MERGED: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Files of the machine's /etc that programs need to find libraries, certificates and protocol names. None of them
# identifies the machine or its users.
_ETC: Final = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime",
    "mime.types", "pki", "protocols", "services", "ssl",
)  # fmt: skip
_DIRECTORIES: Final = ("dev", "etc", "home", "mnt", "opt", "proc", "root", "run", "srv", "tmp", "var", "var/tmp")
_WORLD: Final = ("tmp", "var/tmp")


class Rootfs:
    """Used once, in a process forked for one container: it changes the root of the process."""

    def __init__(
        self,
        pod: PodSandbox,
        spec: ContainerSpec,
        programs: Path,
        cgroup: Path | None = None,
        disk: int | None = None,
    ) -> None:
        self.pod = pod
        self.spec = spec
        self.programs = programs
        # Mounted read-only for a runtime that needs to see a cgroup.
        self.cgroup = cgroup
        # The mount for the container's writes, if its spec has a disk for them.
        self.disk = disk
        # Mounts below /dev, which the runtime makes and mounts itself: path in the staging tmpfs, mount.
        self.in_dev: list[tuple[str, Bind | Tmpfs | DataFile]] = []
        self._opened: dict[str, int] = {}
        self._staged = 0

    def build(self) -> None:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
        self._open_sources()
        syscalls.mount(
            "staging", _STAGING, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, f"size={_STAGING_SIZE},mode=755"
        )
        os.chdir(_STAGING)
        self._provide_bwrap()
        os.mkdir(SANDBOX[1:])
        root = self.spec.root
        if isinstance(root, HostToolchain):
            self._mount_toolchain(root)
        else:
            self._mount_layers(root)
        self.root = self._open_root(SANDBOX[1:])
        self._write_names()
        for mount in self.spec.mounts:
            self._mount(mount)
        # A missing working directory is made, as by every container runtime.
        for directory in ("/proc", "/dev", self.spec.cwd):
            os.close(self.root.place(directory, directory=True))
        self._leave_host()

    def check(self) -> None:
        """Raise ``NoSuchCommand`` if the program does not exist."""
        self.root = self._open_root(SANDBOX)
        self.root.check_program(self.spec.argv[0], self.spec.cwd, self.spec.env.get("PATH", os.defpath))

    def _open_sources(self) -> None:
        """Open all sources before the staging tmpfs covers any of them."""
        spec = self.spec
        wanted = ["/usr", "/proc", "/dev", str(self.programs), *([] if self.cgroup is None else [str(self.cgroup)])]
        if isinstance(spec.root, HostToolchain):
            wanted += [f"/etc/{name}" for name in _ETC if os.path.exists(f"/etc/{name}")]
            wanted += [str(prefix) for prefix in spec.root.prefixes]
        wanted += [str(layer) for layer in spec.root.layers]
        wanted += [f"/{name}" for name in _MERGED if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")]
        if spec.scratch.directory is not None:
            wanted.append(str(spec.scratch.directory))
        wanted += [str(mount.source) for mount in spec.mounts if isinstance(mount, Bind)]
        for path in dict.fromkeys(wanted):
            try:
                self._opened[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError as error:
                raise RuntimeFailure(f"cannot mount {path}: {error.strerror}") from error

    def _provide_bwrap(self) -> None:
        for name in ("tmp", "proc", "dev", PROGRAMS[1:]):
            os.mkdir(name)
        # Without root, a bind mount must include the mounts below: the kernel forbids uncovering what they cover.
        self._bind(self._opened["/proc"], "proc", deep=is_unprivileged())
        self._bind(self._opened["/dev"], "dev", deep=is_unprivileged())
        self._bind(self._opened[str(self.programs)], PROGRAMS[1:], read_only=True)
        if self.cgroup is not None:
            os.makedirs(CGROUPS[1:])
            self._bind(self._opened[str(self.cgroup)], CGROUPS[1:], read_only=True)
        self._provide_usr("")

    def _provide_usr(self, within: str) -> None:
        """Mount the host's programs at their usual places: /usr, and /bin and the like as on the host."""
        os.makedirs(f"{within}usr", exist_ok=True)
        self._bind(self._opened["/usr"], f"{within}usr", read_only=True)
        self._provide_merged(within)

    def _provide_merged(self, within: str) -> None:
        for name in _MERGED:
            if os.path.lexists(f"{within}{name}"):
                continue  # of a layer
            if os.path.islink(f"/{name}"):
                os.symlink(os.readlink(f"/{name}"), f"{within}{name}")
            elif f"/{name}" in self._opened:
                os.mkdir(f"{within}{name}")
                self._bind(self._opened[f"/{name}"], f"{within}{name}", read_only=True)

    def _provide_usr_with_layers(self, within: str, layers: int) -> None:
        """Mount /usr with the additions of layers. It is writable if the container's writes become a layer."""
        above = [f"{_STAGING}/layers/{index}/usr" for index in range(layers) if os.path.isdir(f"layers/{index}/usr")]
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
        os.makedirs(f"{within}usr", exist_ok=True)
        if self.spec.scratch.directory is not None:
            os.mkdir("layers/usr")
            owners = user_namespace(self.spec.uid, self.pod.host_uid, self.spec.gid, self.pod.host_gid)
            self._bind_mapped(self._opened["/usr"], f"{_STAGING}/layers/usr", owners)
            os.close(owners)
            for name in ("usr", "usr-work"):
                os.mkdir(f"scratch/{name}", 0o755)
            os.chown("scratch/usr", self.pod.host_uid, self.pod.host_gid)
            lower = ":".join([*above, f"{_STAGING}/layers/usr"])
            writes = f"upperdir={_STAGING}/scratch/usr,workdir={_STAGING}/scratch/usr-work"
            syscalls.mount("overlay", f"{within}usr", "overlay", flags, f"lowerdir={lower},{writes}")
        elif above:
            lower = ":".join([*above, f"{_STAGING}/usr"])
            syscalls.mount("overlay", f"{within}usr", "overlay", flags | syscalls.MS_RDONLY, f"lowerdir={lower}")
        else:
            self._bind(self._opened["/usr"], f"{within}usr", read_only=True)
        self._provide_merged(within)

    def _mount_toolchain(self, root: HostToolchain) -> None:
        pod, base = self.pod, SANDBOX[1:]
        self._mount_scratch()
        os.mkdir("scratch/upper", 0o755)
        os.chown("scratch/upper", pod.host_uid, pod.host_gid)
        if root.layers:
            self._place_layers(root.layers)
            self._mount_overlay(len(root.layers))
        else:
            syscalls.mount("scratch/upper", base, "", syscalls.MS_BIND)
        for name in _DIRECTORIES:
            if not os.path.lexists(f"{base}/{name}"):
                os.mkdir(f"{base}/{name}")
                os.chmod(f"{base}/{name}", 0o1777 if name in _WORLD else 0o755)
                os.chown(f"{base}/{name}", pod.host_uid, pod.host_gid)
        if not os.path.lexists(f"{base}/var/run"):
            os.symlink("/run", f"{base}/var/run")
        if root.layers or self.spec.scratch.directory is not None:
            os.makedirs("layers", exist_ok=True)
            self._provide_usr_with_layers(f"{base}/", len(root.layers))
        else:
            self._provide_usr(f"{base}/")
        self.root = self._open_root(base)
        for name in _ETC:
            if (source := self._opened.get(f"/etc/{name}")) is not None:
                self.root.bind(source, f"/etc/{name}", read_only=True)
        for prefix in root.prefixes:
            self.root.bind(self._opened[str(prefix)], str(prefix), read_only=True)
        self._write_users()

    def _mount_layers(self, root: ImageLayers) -> None:
        self._place_layers(root.layers)
        self._mount_scratch()
        os.mkdir("scratch/upper")
        # The root directory of an overlay has the owner and mode of its upper directory.
        top = os.stat("layers/0")
        if not is_unprivileged():
            os.chown("scratch/upper", top.st_uid, top.st_gid)
        os.chmod("scratch/upper", stat.S_IMODE(top.st_mode))
        self._mount_overlay(len(root.layers))

    def _mount_overlay(self, layers: int) -> None:
        """Mount the root: the layers, and above them what the container writes."""
        os.makedirs("scratch/work", exist_ok=True)
        lower = ":".join(f"{_STAGING}/layers/{index}" for index in range(layers))
        options = f"lowerdir={lower},upperdir={_STAGING}/scratch/upper,workdir={_STAGING}/scratch/work"
        options += ",userxattr" if is_unprivileged() else ""
        syscalls.mount("overlay", SANDBOX[1:], "overlay", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)

    def _mount_scratch(self) -> None:
        """Mount what holds the writes of the container at ``scratch`` in the staging tmpfs."""
        scratch = self.spec.scratch
        os.mkdir("scratch")
        if self.disk is not None:
            syscalls.attach_mount(self.disk, "scratch")
        elif scratch.directory is not None:
            self._bind(self._opened[str(scratch.directory)], "scratch")
        else:
            flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
            syscalls.mount("scratch", "scratch", "tmpfs", flags, f"size={scratch.size}")

    def _place_layers(self, layers: Sequence[Path]) -> None:
        os.mkdir("layers")
        for index in range(len(layers)):
            os.mkdir(f"layers/{index}")
        if is_unprivileged():
            # Without root there is no ID mapping: the files belong to this user, who has unpacked the image.
            for index, layer in enumerate(layers):
                self._bind(self._opened[str(layer)], f"{_STAGING}/layers/{index}")
            return
        spec, pod = self.spec, self.pod
        owners = user_namespace(spec.uid, pod.host_uid, spec.gid, pod.host_gid)
        for index, layer in enumerate(layers):
            self._bind_mapped(self._opened[str(layer)], f"{_STAGING}/layers/{index}", owners)
        os.close(owners)

    def _write_users(self) -> None:
        uid, gid = self.spec.uid, self.spec.gid
        name, home = ("root", "/root") if uid == 0 else ("sandbox", "/home/sandbox")
        group = "root" if gid == 0 else "sandbox"
        os.close(self.root.place(home, directory=True))
        nobody = "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        self.root.write("/etc/passwd", f"{name}:x:{uid}:{gid}:{name}:{home}:/bin/sh\n{nobody}".encode(), 0o644)
        self.root.write("/etc/group", f"{group}:x:{gid}:\nnogroup:x:65534:\n".encode(), 0o644)
        self.root.write("/etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n", 0o644)

    def _write_names(self) -> None:
        pod = self.pod
        self.root.write("/etc/hostname", f"{pod.hostname}\n".encode(), 0o644)
        self.root.write("/etc/hosts", pod.hosts.encode() or b"127.0.0.1\tlocalhost\n::1\tlocalhost\n", 0o644)
        self.root.write("/etc/resolv.conf", pod.resolv_conf.encode(), 0o644)

    def _mount(self, mount: Bind | Tmpfs | DataFile) -> None:
        if PurePosixPath("/proc") in (path := PurePosixPath(mount.target), *path.parents):
            raise RuntimeFailure(f"nothing can be mounted at {mount.target}")
        if PurePosixPath("/dev") in path.parents:
            self.in_dev.append((self._stage_for_dev(mount), mount))
            return
        match mount:
            case Bind():
                self.root.bind(self._source(mount), mount.target, read_only=mount.read_only)
            case Tmpfs():
                point = self.root.place(mount.target, directory=True)
                syscalls.mount(
                    "tmpfs", path_of(point), "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, self._tmpfs_options(mount)
                )
                os.close(point)
            case DataFile():
                self.root.bind(self._stage_file(mount), mount.target, read_only=True)

    def _stage_for_dev(self, mount: Bind | Tmpfs | DataFile) -> str:
        match mount:
            case Bind():
                source = self._source(mount)
                path = self._next(directory=stat.S_ISDIR(os.fstat(source).st_mode))
                self._bind(source, path)
                if not is_unprivileged():
                    restrict_mount(path, read_only=False)
            case Tmpfs():
                path = self._next(directory=True)
                syscalls.mount(
                    "tmpfs", path, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, self._tmpfs_options(mount)
                )
            case DataFile():
                path = os.readlink(path_of(self._stage_file(mount))).removeprefix(f"{_STAGING}/")
        return f"/{path}"

    def _tmpfs_options(self, mount: Tmpfs) -> str:
        return f"size={mount.size},mode={mount.mode:o},uid={self.pod.host_uid},gid={self.pod.host_gid}"

    def _source(self, mount: Bind) -> int:
        volume = self._opened[str(mount.source)]
        if not mount.subpath:
            return volume
        try:
            if mount.make:
                make_below(volume, mount.subpath, self.pod.host_uid, self.pod.host_gid)
            return syscalls.open_within(volume, mount.subpath, resolve=syscalls.RESOLVE_BENEATH)
        except OSError as error:
            raise RuntimeFailure(f"cannot mount {mount.subpath} of a volume: {error.strerror}") from error

    def _stage_file(self, mount: DataFile) -> int:
        path = self._next(directory=False)
        with open(path, "wb") as file:
            file.write(mount.content)
        os.chown(path, self.pod.host_uid, self.pod.host_gid)
        os.chmod(path, mount.mode)
        return os.open(path, os.O_PATH | os.O_CLOEXEC)

    def _next(self, *, directory: bool) -> str:
        """A new mount point in the staging tmpfs."""
        self._staged += 1
        path = f"mount-{self._staged}"
        if directory:
            os.mkdir(path)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        return path

    def _bind(self, source: int, target: str, *, read_only: bool = False, deep: bool = False) -> None:
        syscalls.mount(path_of(source), target, "", syscalls.MS_BIND | (syscalls.MS_REC if deep else 0))
        if read_only:
            restrict_mount(target, read_only=True)

    def _bind_mapped(self, source: int, target: str, owners: int) -> None:
        tree = syscalls.clone_mount(source)
        syscalls.map_ids(tree, owners)
        syscalls.attach_mount(tree, target)
        os.close(tree)

    def _open_root(self, path: str) -> Root:
        return Root(path, self.pod.host_uid, self.pod.host_gid)

    def _leave_host(self) -> None:
        self.root.close()
        for descriptor in self._opened.values():
            os.close(descriptor)
        syscalls.change_root(_STAGING)
