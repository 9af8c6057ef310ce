"""From a forked shim to the job's program. Owns everything between fork and exec in the child.

May import: containment, failpoints, linux, logs. One thing to know: `become_job` never returns; what goes
wrong is told through a close-on-exec pipe, and the kernel's exit status stays the only status.
"""

from __future__ import annotations

import errno
import json
import os
import signal
from typing import Any, Dict, List, NamedTuple, NoReturn, Optional

from . import MARKER, linux, logs
from .containment import Enclosure
from .failpoints import reach

NOT_FOUND = 127
NOT_EXECUTABLE = 126
DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin"


class LaunchRefused(Exception):
    """The program is not run; `exit_code` None means that nothing of the job was started."""

    def __init__(self, error: str, exit_code: Optional[int] = None) -> None:
        super().__init__(error)
        self.exit_code = exit_code


def to_bytes(text: str) -> bytes:
    """A string of the spec as the bytes the user typed, whatever this process's locale is."""
    return text.encode("utf-8", "surrogateescape")


class Plan(NamedTuple):
    """All that the child needs, computed before the fork: the less it computes, the fewer pages it copies."""

    argv: List[bytes]
    candidates: List[bytes]
    environment: Dict[bytes, bytes]
    cwd: bytes
    outputs: List[bytes]
    truncate: bool
    umask: int
    kept_by_gpuq: bool


def plan(spec: Dict[str, Any], environment: bytes, attempt: str) -> Plan:
    """Read a spec; raises KeyError, TypeError, AttributeError or ValueError when it cannot be used."""
    argv = [to_bytes(word) for word in spec["argv"]]
    if not argv or not argv[0] or b"\0" in b"".join(argv):
        raise ValueError("argv is empty or holds a NUL")
    variables = environment_of(environment, attempt)
    cwd = to_bytes(spec["cwd"])
    names = [spec["stdout"], spec.get("stderr")]
    return Plan(
        argv=argv,
        candidates=_candidates(argv[0], variables),
        environment=variables,
        cwd=cwd,
        outputs=[os.path.join(cwd, to_bytes(name)) for name in names if name],
        truncate=spec.get("open_mode") == "truncate",
        umask=int(spec["umask"]),
        kept_by_gpuq=spec.get("log_limit_bytes") is not None,
    )


def environment_of(data: bytes, attempt: str) -> Dict[bytes, bytes]:
    """The job's environment: the given `K=V` entries and the attempt's marker."""
    environment: Dict[bytes, bytes] = {}
    for entry in data.split(b"\0"):
        name, separator, value = entry.partition(b"=")
        if separator and name:
            environment[name] = value
    environment[MARKER.encode()] = attempt.encode()
    return environment


def _candidates(program: bytes, environment: Dict[bytes, bytes]) -> List[bytes]:
    """Where the program may be: its path, or its name in each directory of the job's PATH."""
    if b"/" in program:
        return [program]
    folders = environment.get(b"PATH", DEFAULT_PATH).split(b":")
    return [os.path.join(folder or b".", program) for folder in folders]


def become_job(prepared: Plan, enclosure: Enclosure, shim_pid: int, told: int) -> NoReturn:
    """Run in the forked child: turn into the job's program.

    Signals need no care here: the forker ignores none and blocks none, and exec resets handlers. All
    descriptors but 0, 1 and 2 are close-on-exec.
    """
    code = NOT_EXECUTABLE
    try:
        os.setsid()
        linux.set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != shim_pid:
            os._exit(code)  # the shim died before the kernel was asked to watch it
        enclosure.enter()
        _enter_directory(prepared.cwd)
        _open_standard_streams(prepared)
        reach("shim.before_exec")
        _execute(prepared)
    except LaunchRefused as refusal:
        code = refusal.exit_code if refusal.exit_code is not None else NOT_EXECUTABLE
        _tell(told, refusal.exit_code, str(refusal))
    except OSError as error:
        _tell(told, None, f"The job could not be started on this node ({error.strerror or error}); try again.")
    except BaseException as error:
        _tell(told, None, f"The job's description cannot be used ({error!r}); submit it again.")
    finally:
        os._exit(code)


def _enter_directory(cwd: bytes) -> None:
    try:
        os.chdir(cwd)
    except OSError as error:
        raise LaunchRefused(
            f"The working directory {_shown(cwd)} cannot be entered on this node ({error.strerror}); "
            "create it there or submit with another one."
        ) from error


def _open_standard_streams(prepared: Plan) -> None:
    """Put /dev/null and the job's outputs on 0, 1 and 2."""
    if prepared.kept_by_gpuq:
        for path in prepared.outputs:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    os.umask(prepared.umask)
    mode = 0o600 if prepared.kept_by_gpuq else 0o666
    try:
        opened = [logs.open_output(path, prepared.truncate, mode) for path in prepared.outputs]
    except logs.OutputRefused as refusal:
        raise LaunchRefused(str(refusal.args[0])) from refusal
    os.dup2(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), 0)
    os.dup2(opened[0], 1)
    os.dup2(opened[-1], 2)


def _execute(prepared: Plan) -> NoReturn:
    """Become the first candidate that can be executed; raises LaunchRefused."""
    refused: Optional[OSError] = None
    for candidate in prepared.candidates:
        try:
            os.execve(candidate, prepared.argv, prepared.environment)
        except OSError as error:
            missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
            if not missing or (os.path.isfile(candidate) and refused is None):
                refused = error
                refused.filename = candidate
            if not missing and error.errno != errno.EACCES:
                break
    raise _refusal(prepared.argv[0], refused)


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")


def _refusal(program: bytes, error: Optional[OSError]) -> LaunchRefused:
    shown = _shown(program)
    if error is None:
        where = "does not exist on this node" if b"/" in program else "is not in the job's PATH on this node"
        return LaunchRefused(f"The program {shown} {where}; check the name or give its full path.", NOT_FOUND)
    path = _shown(error.filename)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        text = f"The interpreter named in the first line of {path} does not exist on this node; correct that line."
        return LaunchRefused(text, NOT_FOUND)
    if error.errno == errno.ENOEXEC:
        text = f"The file {path} is neither a program nor a script with a `#!` first line; add one."
    elif error.errno == errno.EACCES:
        text = f"The file {path} may not be executed; run `chmod +x` on it or name its interpreter."
    else:
        text = f"The program {path} cannot be executed ({error.strerror}); check it and its arguments."
    return LaunchRefused(text, NOT_EXECUTABLE)


def _tell(told: int, exit_code: Optional[int], error: str) -> None:
    """Tell the shim; a program that could not be executed is told to the job's error log too."""
    try:
        os.write(told, json.dumps({"exit_code": exit_code, "error": error}).encode("ascii")[:4000])
        if exit_code is not None:
            os.write(2, b"gpuq: " + error.encode("utf-8", "replace") + b"\n")
    except OSError:
        pass  # nobody is left to tell
