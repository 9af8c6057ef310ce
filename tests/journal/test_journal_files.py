"""The directory, its lock, the kind of disk, and the failpoints' own rules."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from journal_cases import run_program

from gpuq.errors import JournalError, UsageError
from gpuq.journal import files
from gpuq.journal.failpoints import ALL, Failpoint, parse_failpoints
from gpuq.journal.files import filesystem_warning, take_lock
from gpuq.journal.problems import JournalFull, is_full, write_error

MOUNTS = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:50 / /home rw shared:2 master:1 - nfs4 server:/export/home rw,vers=4.2
31 30 254:2 / /home/local\\040disk rw - xfs /dev/vdb rw
32 22 0:52 / /mnt/share rw - cifs //nas/share rw
33 22 0:53 / /mnt/ssh rw - fuse.sshfs bob@host: rw
34 22 254:3 / /data rw - ext4 /dev/vdc rw
35 22 0:54 / /data rw - nfs server:/data rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/gpuq", None),
        ("/home/ada/.local/state/gpuq", "nfs4 (server:/export/home)"),
        ("/home/local disk/gpuq", None),
        ("/homework", None),
        ("/mnt/share", "cifs"),
        ("/mnt/ssh/gpuq", "fuse.sshfs"),
        ("/data/gpuq", "nfs (server:/data)"),
    ],
)
def test_network_disks_are_named_with_the_setting(path: str, kind: str | None) -> None:
    """The innermost and newest mount decides; the warning names its kind and GPUQ_HOME."""
    warning = filesystem_warning(Path(path), MOUNTS)
    if kind is None:
        assert warning is None
    else:
        assert warning is not None
        assert kind in warning
        assert "GPUQ_HOME" in warning


def test_this_disk_is_looked_up() -> None:
    """Without a given text the kernel's own list is read; /proc is nobody's network disk."""
    assert filesystem_warning(Path("/proc")) is None


def test_a_disk_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the file system cannot lock, there could be two daemons: one sentence, and the setting to change."""

    def no_lock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", no_lock)
    with pytest.raises(JournalError, match="cannot lock files") as caught:
        take_lock(tmp_path)
    assert "GPUQ_HOME" in (caught.value.hint or "")


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A file in the directory's place gives one sentence with the setting."""
    (tmp_path / "home").write_text("x")
    with pytest.raises(JournalError, match="cannot be made") as caught:
        files.make_home(tmp_path / "home")
    assert "GPUQ_HOME" in (caught.value.hint or "")


def test_quota_counts_as_full(tmp_path: Path) -> None:
    """A used-up quota is told as a full disk, any other error is not."""
    assert is_full(OSError(errno.EDQUOT, "quota"))
    assert isinstance(write_error(OSError(errno.ENOSPC, "space"), tmp_path), JournalFull)
    assert not isinstance(write_error(OSError(errno.EIO, "io"), tmp_path), JournalFull)


def test_the_reserve_is_made_of_real_blocks(tmp_path: Path) -> None:
    """The reserve occupies its space on disk, and can be freed and made again."""
    reserve = files.Reserve(tmp_path)
    assert (reserve.make(), reserve.is_whole()) == (True, True)
    assert os.stat(tmp_path / "reserve").st_blocks * 512 >= files.RESERVE_BYTES
    assert (reserve.free(), reserve.free(), reserve.is_whole()) == (True, False, False)
    assert reserve.make()


def test_failpoints_are_parsed() -> None:
    """Each form is understood; places of the agent are left alone."""
    plan = parse_failpoints("journal.before_commit=kill, journal.after_commit=delay:50@2,shim.claim=kill,")
    assert plan == {
        "journal.before_commit": Failpoint("journal.before_commit", "kill"),
        "journal.after_commit": Failpoint("journal.after_commit", "delay", 0.05, 2),
    }
    assert parse_failpoints("") == {}


@pytest.mark.parametrize(
    "text",
    ["journal.befor_commit=kill", "journal.before_commit=explode", "journal.before_commit=delay",
     "journal.before_commit=kill:3", "journal.before_commit=kill@x", "journal.before_commit"],
)  # fmt: skip
def test_a_failpoint_with_a_typo_is_an_error(text: str) -> None:
    """A test that asks for a failure that cannot happen must not pass for one that survived it."""
    with pytest.raises(UsageError, match="GPUQ_FAILPOINTS"):
        parse_failpoints(text)


REACHER = """
import sys, time
from gpuq.journal.failpoints import reach
start = time.monotonic()
for _ in range(3):
    try:
        reach(sys.argv[1])
        print("passed")
    except OSError as error:
        print(error.errno)
print(time.monotonic() - start > 0.2)
"""


def test_failpoints_fire_as_told(tmp_path: Path) -> None:
    """Errors are raised at every hit, or at the named one; a delay waits; a shared directory makes it once for all."""
    place = "journal.before_commit"

    def outcomes(action: str, **variables: str) -> list[str]:
        return run_program(REACHER, place, GPUQ_FAILPOINTS=f"{place}={action}", **variables).stdout.split()

    assert outcomes("eio") == ["5", "5", "5", "False"]
    assert outcomes("enospc@2") == ["passed", "28", "passed", "False"]
    assert outcomes("delay:300@1") == ["passed", "passed", "passed", "True"]
    assert outcomes("eio", GPUQ_FAILPOINTS_DIR=str(tmp_path)) == ["5", "passed", "passed", "False"]
    assert outcomes("eio", GPUQ_FAILPOINTS_DIR=str(tmp_path)) == ["passed", "passed", "passed", "False"]
    assert (tmp_path / place).exists()
    unknown = run_program(REACHER, "journal.nowhere", GPUQ_FAILPOINTS=f"{place}=eio")
    assert "KeyError" in unknown.stderr


def test_every_failpoint_is_reached_in_the_source() -> None:
    """Each of the journal's names stands in a call of reach, or crash tests would test nothing there."""
    source = "\n".join(path.read_text() for path in Path(files.__file__).parent.glob("*.py"))
    ours = [name for name in ALL if name.startswith("journal.")]
    assert len(ours) == 6
    assert [name for name in ours if f'reach("{name}")' not in source] == []
