"""gpuq.toml, and where gpuq's files are."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from gpuq import config, socketpath
from gpuq.errors import ConfigError, UserError

_ALL = """
[daemon]
socket = "/run/x/gpuq.sock"
log_level = "debug"
admins = ["anna", "@staff"]
[submit]
gpus = 2
time = "2h"
grace = "45s"
[logs]
limit = "2GiB"
directory = "/logs"
[gpus]
foreign_memory = "1GiB"
sample_every = "5s"
ignore = ["Xorg"]
[planner]
every = "60s"
min_gap = "2s"
default_runtime = "30"
max_gpus_per_user = 3
[prune]
forget_after = "30d"
[impact]
energy = 0.5
age = 2
balance = 0
[accounts.vision]
users = ["anna", "tom"]
share = 2
max_gpus = 8
[node.local]
gpus = ["A100:4", "V100"]
cpus = 16
memory = "64G"
simulate = true
"""


def _environ(tmp_path: Path, text: str | None = None, **more: str) -> dict[str, str]:
    environ = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path), **more}
    if text is not None:
        file = tmp_path / "gpuq.toml"
        file.write_text(text)
        environ["GPUQ_CONFIG"] = str(file)
    return environ


def test_every_key(tmp_path: Path) -> None:
    """Each key of each section reaches its field, in the unit of the field's name."""
    found, paths = config.load(_environ(tmp_path, _ALL))
    assert paths.socket == "/run/x/gpuq.sock"
    assert found.daemon == config.DaemonConfig("/run/x/gpuq.sock", "debug", ("anna", "@staff"))
    assert found.submit == config.SubmitConfig(2, 7200.0, 45.0)
    assert found.logs == config.LogsConfig(2 << 30, "/logs")
    assert found.gpus == config.GpusConfig(1024, 5.0, ("Xorg",))
    assert found.planner == config.PlannerConfig(60.0, 2.0, 1800.0, max_gpus_per_user=3)
    assert found.prune.forget_after_s == 30 * 86400
    assert (found.impact.energy, found.impact.age, found.impact.balance, found.impact.deadline) == (0.5, 2.0, 0.0, 1.0)
    assert found.accounts == (config.AccountConfig("vision", ("anna", "tom"), 2.0, 8),)
    assert {"impact.energy", "planner.every_s", "submit.time_limit_s"} <= found.stated
    assert "impact.deadline" not in found.stated
    assert found.nodes == (config.NodeConfig("local", ("A100:4", "V100"), 16, 65536, True),)


def test_without_a_file_all_is_default(tmp_path: Path) -> None:
    """No gpuq.toml is not an error."""
    assert config.load(_environ(tmp_path))[0] == config.Config()


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[deamon]\n", r"no section \[deamon\]", "daemon"),
        ("[submit]\ngpu = 1\n", "no key 'gpu' in", "gpus"),
        ("[submit]\ngpus = -1\n", r"gpus = -1 in \[submit\]", "0 or larger"),
        ("[submit]\ngpus = true\n", "gpus = True", "whole number"),
        ('[submit]\ntime = "soon"\n', "time = 'soon'", "2h30m"),
        ('[accounts.a]\nmax_gpus = "many"\n', r"max_gpus = 'many' in \[accounts.a\]", "whole number"),
        ("[planner]\nmax_gpus_per_user = -1\n", "max_gpus_per_user = -1", "0 or larger"),
        ('[planner]\nevery = "0s"\n', "every = '0s'", "above 0"),
        ('[node.a]\ngpus = ["A100:x"]\n', r"\[node.a\]", "A100:4"),
        ("[daemon]\nlog_level = 3\n", "log_level = 3", "text in quotes"),
        ("daemon = 3\n", "must be a section", ""),
        ("[daemon\n", "is not TOML", "config check"),
    ],
)
def test_mistakes_name_file_and_key(tmp_path: Path, text: str, message: str, hint: str) -> None:
    """A wrong setting is one sentence with the file, the key and the way out."""
    with pytest.raises(ConfigError, match=message) as caught:
        config.load(_environ(tmp_path, text))
    assert "gpuq.toml" in caught.value.message
    assert hint in (caught.value.hint or "")


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    """GPUQ_CONFIG naming nothing is an error, not silence."""
    with pytest.raises(ConfigError, match="does not exist"):
        config.load({"HOME": str(tmp_path), "GPUQ_CONFIG": str(tmp_path / "no.toml")})


def test_places(tmp_path: Path) -> None:
    """The default home has its socket in the runtime directory; any other home has it inside."""
    default = config.find_paths(_environ(tmp_path))
    assert default.home == str(tmp_path / ".local/state/gpuq")
    assert default.socket == str(tmp_path / "gpuq/gpuq.sock")
    other = config.find_paths(_environ(tmp_path, GPUQ_HOME=str(tmp_path / "h")))
    assert other.socket == str(tmp_path / "h/gpuq.sock")
    given = config.find_paths(_environ(tmp_path, GPUQ_SOCKET="/s/x.sock"))
    assert given.socket == "/s/x.sock"
    state = config.find_paths(_environ(tmp_path, XDG_STATE_HOME=str(tmp_path / "state")))
    assert (state.home, state.socket) == (str(tmp_path / "state/gpuq"), str(tmp_path / "gpuq/gpuq.sock"))


def test_a17_long_socket_path(tmp_path: Path) -> None:
    """A17: a path far above the kernel's limit is bound and connected to all the same."""
    path = str(tmp_path / ("d" * 150) / "gpuq.sock")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        with socketpath.bind_address(path) as name:
            server.bind(name)
        server.listen()
        with socketpath.connect_address(path) as name:
            client.connect(name)
        assert socketpath.peer_uid(client) == os.getuid()
    assert stat.S_ISSOCK(os.stat(path).st_mode)
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    """The descriptor of a long path's directory is closed again."""
    directory = tmp_path / ("d" * 150)
    directory.mkdir()
    before = len(os.listdir("/proc/self/fd"))
    with socketpath.connect_address(str(directory / "gpuq.sock")):
        assert len(os.listdir("/proc/self/fd")) == before + 1
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    """A socket is never bound where others could replace it."""
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(UserError, match="can be written by others"):
        socketpath.bind_address(str(directory / "gpuq.sock"))
