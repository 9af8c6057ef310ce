"""A machine of its own for one test: systemd as pid 1 in new namespaces, and a manager of the user's units below it.

Owns: the namespaces, the overlay over the real root, the control groups, and their end. May import: the standard
library, the harness, the rule for missing tools.

One thing to know: the test's directory is the same inside and outside, so a daemon in the machine is reached at its
socket as any other; pids outside are the kernel's own, and killing pid 1 ends everything and unmounts everything.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.e2e.harness import DEADLINE_S, ROOT, eventually
from tests.requirements import need

SYSTEMD = Path("/lib/systemd/systemd")
RUNTIME = "/run/user/0"
END_WITHIN_S = 10.0
NAMESPACES = ("--pid", "--mount", "--net", "--cgroup", "--ipc", "--uts")
WITH_THE_TESTS = ("setpriv", "--pdeathsig", "KILL")  # the machine ends even when the tests are killed

_count = itertools.count()

# Pid 1 of the new namespaces, until it becomes systemd. Mounts are seen in here only and end with the last process.
# The overlay hides all that the distribution would start: no unit runs but those of the test and what they require.
_SETUP = r"""
set -eu
directory=$1; shift
layers=$directory/layers
root=$layers/root
mount -t tmpfs -o mode=755 layers "$layers"
mkdir "$layers/upper" "$layers/work" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$layers/upper,workdir=$layers/work" overlay "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 dev "$root/dev"
for name in null zero full random urandom tty; do
    touch "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir -m 1777 "$root/dev/shm"
mount -t tmpfs -o mode=755 run "$root/run"
for shared in "$@"; do
    mkdir -p "$root$shared"
    mount --bind "$shared" "$root$shared"
done
rm -rf "$root"/{etc,lib,usr/lib}/systemd/{system,user}/*.{wants,requires}
: > "$root/etc/fstab"
for name in udevd udev-trigger sysctl tmpfiles-setup tmpfiles-setup-dev timesyncd logind; do
    ln -sf /dev/null "$root/etc/systemd/system/systemd-$name.service"
done
ln -sf /dev/null "$root/etc/systemd/system/modprobe@.service"
cp "$directory"/units/* "$root/etc/systemd/system"
mkdir -p "$root/mnt"
cd "$root"
pivot_root . mnt
umount -l /mnt
exec env -i container=gpuq-test PATH="$PATH" "$(readlink -f /lib/systemd/systemd)" --system \
    --unit=gpuq-machine.target --log-target=console --show-status=no
"""

_PROBE = """
mount -t tmpfs layers /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root
"""

# Like user@.service, but without a login: that needs PAM, D-Bus and logind.
_USER_MANAGER = f"""
[Service]
Type=notify
User=root
Environment="HOME={{home}}" XDG_RUNTIME_DIR={RUNTIME}
RuntimeDirectory={RUNTIME.removeprefix("/run/")}
RuntimeDirectoryMode=0700
ExecStart={SYSTEMD} --user
KillMode=mixed
Delegate=yes
"""

_TARGET = """
[Unit]
Requires=gpuq-user-manager.service
After=gpuq-user-manager.service
"""


class Machine:
    """systemd, running; `environment` is what a person who is logged in there has.

    directory: seen inside too. environment: HOME in it lies below `directory`.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.environment = {**environment, "XDG_RUNTIME_DIR": RUNTIME}
        self._directory = directory
        self._group = _unified_mount() / f"gpuq-test-{os.getpid()}-{next(_count)}"
        self._outer: subprocess.Popen[bytes] | None = None
        self._init = 0

    def boot(self) -> Machine:
        """Start and wait until both managers say `running`; fails with what they said."""
        for name in ("layers", "units"):
            (self._directory / name).mkdir()
        home = self.environment["HOME"]
        (self._directory / "units" / "gpuq-user-manager.service").write_text(_USER_MANAGER.format(home=home))
        (self._directory / "units" / "gpuq-machine.target").write_text(_TARGET)
        self._group.mkdir()
        shared = [self._directory, *_apart_from_root(ROOT, Path(sys.prefix), Path(sys.base_prefix))]
        setup = ["bash", "-c", _SETUP, "setup", str(self._directory), *map(str, shared)]
        with open(self._directory / "console", "wb") as console:
            self._outer = subprocess.Popen(
                [*_in_group(self._group), *WITH_THE_TESTS, "unshare", *NAMESPACES, "--fork", "--kill-child", *setup],
                stdin=subprocess.DEVNULL, stdout=console, stderr=console,
            )  # fmt: skip
        (self._group / "login").mkdir()
        eventually(lambda: self._is_running() or self._has_ended(), lambda: f"systemd runs: {self._said()}")
        assert not self._has_ended(), f"systemd ended: {self._said()}"
        return self

    def _is_running(self) -> bool:
        """Whether both managers have started all that they should."""
        self._init = self._init or _child_of(self._outer.pid if self._outer else 0)
        if not self._init or not Path(f"/proc/{self._init}/root/run/systemd/private").exists():
            return False
        answers = [self.run("systemctl", *whose, "is-system-running").stdout for whose in ((), ("--user",))]
        return answers == ["running\n"] * 2

    def _has_ended(self) -> bool:
        return self._outer is not None and self._outer.poll() is not None

    def _said(self) -> str:
        return (self._directory / "console").read_text("utf-8", "replace")[-2000:]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside, in a control group apart from all units, as a login has one."""
        inside = ["nsenter", "--target", str(self._init), *NAMESPACES, "--root", "--wd"]
        return subprocess.run(
            [*_in_group(self._group / "login"), *inside, *words], env=self.environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S,
        )  # fmt: skip

    def checked(self, *words: str) -> str:
        """Run a command inside that must succeed; its output."""
        done = self.run(*words)
        assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def gpuq(self, *words: str) -> str:
        """Run gpuq inside; its output."""
        return self.checked(sys.executable, "-m", "gpuq", *words)

    def systemctl(self, *words: str) -> str:
        """Tell the user's manager something; its output."""
        return self.checked("systemctl", "--user", *words)

    def properties(self, unit: str) -> dict[str, str]:
        """What systemd says of a user's unit."""
        names = "ActiveState,Result,MainPID,NRestarts,ExecMainCode,ExecMainStatus,ControlGroup"
        lines = self.systemctl("show", unit, "--property", names).splitlines()
        return dict(line.split("=", 1) for line in lines)

    def close(self) -> None:
        """End pid 1 and with it all processes and mounts; remove the control groups."""
        if self._outer is not None:
            child = self._init or _child_of(self._outer.pid)
            for pid in (child, self._outer.pid):
                if pid and self._outer.poll() is None:
                    _kill(pid)
            self._outer.wait(END_WITHIN_S)
        end = time.monotonic() + END_WITHIN_S
        while not _removed(self._group):
            assert time.monotonic() < end, f"{self._group} can be removed"
            time.sleep(0.02)


def need_systemd() -> None:
    """Skip the test where a machine like this cannot be made."""
    need(os.geteuid() == 0, "systemd in namespaces needs root")
    need(SYSTEMD.exists(), "systemd is not installed")
    programs = ("unshare", "setpriv", "nsenter", "pivot_root", "systemctl")
    missing = [name for name in programs if shutil.which(name) is None]
    need(not missing, f"not installed: {', '.join(missing)}")
    need(os.access(_unified_mount(), os.W_OK), "no control groups (v2) can be made here")
    tried = subprocess.run(["unshare", *NAMESPACES, "--fork", "sh", "-ec", _PROBE], capture_output=True, text=True)
    need(tried.returncode == 0, f"no overlay in new namespaces: {tried.stderr.strip()}")


def _unified_mount() -> Path:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if right.startswith("cgroup2 "):
            return Path(left.split()[4])
    return Path("/nonexistent")


def _in_group(group: Path) -> list[str]:
    """The words before a command that make it run in a control group."""
    return ["bash", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group)]


def _apart_from_root(*paths: Path) -> Iterator[Path]:
    """Those on another file system, which an overlay over the root does not show."""
    for path in paths:
        if path.stat().st_dev != Path("/").stat().st_dev:
            yield path


def _child_of(pid: int) -> int:
    """The pid of a process's one child; 0 when there is none yet."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return int(children[0]) if children else 0


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended by itself


def _removed(group: Path) -> bool:
    """Whether a control group and those in it are gone; one that still has a process stays."""
    for directory, _, _ in os.walk(group, topdown=False):
        try:
            os.rmdir(directory)
        except OSError:
            return False
    return not group.exists()
