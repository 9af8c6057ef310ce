"""The shim: guards one attempt from its claim to its exit record. Owns limits, signals and the end of a job.

May import: containment, failpoints, launch, linux, logs, processes, records, spool. One thing to know: it needs
neither agent nor daemon; it ends only when the kernel says that no process of the attempt is left.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
import traceback
from typing import Any, Dict, List, NoReturn, Optional

from . import launch, linux, logs, processes, records, spool
from .containment import Enclosure, from_json
from .failpoints import mutant, reach

LOG_CHECK_S = 1.0
SWEEP_S = 0.05
SLOW_SWEEP_S = 1.0
UNKILLABLE_AFTER_S = 5.0
REUSES = 200


def serve_attempts(spool_path: str, source: socket.socket) -> NoReturn:
    """Run as a shim process: guard one attempt after another as the forker names them; never returns.

    A shim that is free is used again, which saves most of what a process costs. The end of `source` ends it,
    but not before the attempt it guards has ended.
    """
    code = 1
    try:
        bell, rung = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(rung, warn_on_full_buffer=False)
        for _ in range(REUSES):
            attempt = source.recv(64).decode("ascii")
            if not attempt:
                break
            _guard(spool_path, attempt, bell)
            try:
                source.send(b"free")
            except OSError:
                break
        code = 0
    finally:
        os._exit(code)


def _guard(spool_path: str, attempt: str, bell: int) -> None:
    """Guard one attempt; a shim that fails ends, and its job with it."""
    try:
        Shim(spool_path, attempt, bell).run()
    except BaseException:
        text = traceback.format_exc().encode("utf-8", "replace")
        try:
            spool.write_file(os.path.join(spool_path, attempt), spool.SHIM_LOG, text)
        except OSError:
            pass  # without a claim the agent asks again, with one it reports the attempt as lost
        os._exit(1)


class Shim:
    """State of one guarded attempt. All times are of the monotonic clock, which stands still in suspend."""

    def __init__(self, spool_path: str, attempt: str, bell: int) -> None:
        self.attempt = attempt
        self.bell = bell
        self.spool_path = spool_path
        self.directory = os.path.join(spool_path, attempt)
        self.control = self.exec_pipe = -1
        self.spec: Dict[str, Any] = {}
        self.claim: Dict[str, Any] = {}
        self.main_pid = 0
        self.main_status: Optional[int] = None
        self.childless = False
        self.launch_error: Optional[Dict[str, Any]] = None
        self.reason: Optional[str] = None
        self.stopping = False
        self.started_s = 0.0
        self.limit_s: Optional[float] = None
        self.warned = False
        self.kill_at_s = 0.0
        self.first_kill_s: Optional[float] = None
        self.log_check_at_s = 0.0
        self.cpu_s = 0.0
        self.max_rss_kib = 0
        self.marker: Optional[Dict[str, Any]] = None

    def run(self) -> None:
        """Claim, start, watch, record."""
        spec = spool.read_json(self.directory, spool.SPEC)
        self._open_control()
        reserve = records.ExitReserve(self.directory)
        reach("shim.before_claim")
        self.claim = self._identity(spec or {})
        lock = spool.make_claim(self.directory, self.claim)
        if lock is not None:
            self._guard_claimed(spec, reserve)
            os.close(lock)
        reserve.drop()
        os.close(self.control)

    def _guard_claimed(self, spec: Optional[Dict[str, Any]], reserve: records.ExitReserve) -> None:
        self._wake()
        reach("shim.after_claim")
        self.enclosure = Enclosure(from_json(self.claim["containment"]), self.attempt)
        self.log_cap = logs.LogCap([], None)
        error = self._started(spec)
        if error is None:
            reach("shim.after_fork")
            self._watch()
            record = self._measured_record()
        else:
            record = records.exit_record(self.attempt, None, self.reason, error, None)
        self._forget_secrets()
        self.enclosure.remove()
        reserve.commit(record, self._free_space)
        reach("shim.after_exit_record")
        self._wake()

    def _open_control(self) -> None:
        path = os.path.join(self.directory, spool.CONTROL)
        try:
            os.mkfifo(path, 0o600)
        except FileExistsError:
            pass
        self.control = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)

    def _identity(self, spec: Dict[str, Any]) -> Dict[str, Any]:
        return {
            "shim_pid": os.getpid(),
            "start_ticks": linux.start_ticks(os.getpid()),
            "boot_id": linux.boot_id(),
            "pid1_start_ticks": linux.start_ticks(1),
            "started_at": time.time(),
            "containment": spec.get("containment"),
        }

    def _wake(self) -> None:
        spool.ring(os.path.join(self.spool_path, spool.WAKE), self.attempt.encode("ascii") + b"\n")

    def _started(self, spec: Optional[Dict[str, Any]]) -> Optional[str]:
        """Fork the job; returns why it was not, in a sentence."""
        if spec is None:
            return "The attempt's description in the spool is not readable; submit the job again."
        stop = spool.read_json(self.directory, spool.STOP)
        if stop is not None:
            self.reason = stop.get("reason")
            return "The job was stopped before its program was started."
        if spec.get("error"):
            return str(spec["error"])
        self.spec = spec
        self.limit_s = spec.get("time_limit_s")
        self._read_limit()
        try:
            with open(os.path.join(self.directory, spool.ENVIRONMENT), "rb") as file:
                prepared = launch.plan(spec, file.read(), self.attempt)
            linux.set_subreaper()
            self.enclosure.make(spec.get("memory_limit_mib"))
            self.log_cap = logs.LogCap(prepared.outputs, spec.get("log_limit_bytes"))
            self._fork(prepared)
        except OSError as error:
            return f"The job could not be started on this node ({error.strerror or error}); try again."
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            return f"The job's description cannot be used ({error!r}); submit it again."
        return None

    def _fork(self, prepared: launch.Plan) -> None:
        self.exec_pipe, told = os.pipe2(os.O_CLOEXEC)
        shim_pid = os.getpid()
        self.main_pid = os.fork()
        if self.main_pid == 0:
            launch.become_job(prepared, self.enclosure, shim_pid, told)
        os.close(told)
        self.started_s = time.monotonic()

    def _watch(self) -> None:
        """Until no process is left: reap, obey, keep the limits."""
        poll = select.poll()
        for descriptor in (self.bell, self.control, self.exec_pipe):
            poll.register(descriptor, select.POLLIN)
        while True:
            self._reap()
            if self.childless and self.exec_pipe < 0:
                return
            now = time.monotonic()
            due_s = self._advance(now)
            timeout_ms = None if due_s is None else max(0, int((due_s - now) * 1000) + 1)
            for descriptor, _ in poll.poll(timeout_ms):
                if descriptor == self.bell:
                    _drain(self.bell)
                elif descriptor == self.control:
                    self._obey(_drain(self.control))
                else:
                    poll.unregister(self.exec_pipe)
                    self._read_exec_pipe()

    def _read_exec_pipe(self) -> None:
        """End of file: the program runs. Else the child's reason why it does not."""
        data = os.read(self.exec_pipe, 8192)
        os.close(self.exec_pipe)
        self.exec_pipe = -1
        if data:
            self.launch_error = json.loads(data)
            return
        spool.unlink(os.path.join(self.directory, spool.ENVIRONMENT))
        reach("shim.after_exec")
        if self.stopping:  # a signal sent before exec met the shim's own signal handlers
            self._signal_all((signal.SIGTERM, signal.SIGCONT))

    def _reap(self) -> None:
        """Collect all dead children; no child at all means, for a subreaper, no descendant at all."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return
            if pid == 0:
                return
            self.cpu_s += usage.ru_utime + usage.ru_stime
            self.max_rss_kib = max(self.max_rss_kib, usage.ru_maxrss)
            if pid == self.main_pid:
                self.main_status = status
                self.childless = mutant("free-gpu-before-kill")
                reach("shim.after_main_exit")

    def _advance(self, now: float) -> Optional[float]:
        """Do what is due; returns when the next thing is."""
        due: List[float] = []
        if self.main_status is not None and not self.stopping and not self.childless:
            self._begin_stop(None, float(self.spec["grace_s"]), now)
        if not self.stopping and self.limit_s is not None:
            end_s = self.started_s + self.limit_s
            if now >= end_s:
                self._begin_stop("timeout", float(self.spec["grace_s"]), now)
            else:
                due += [end_s, *self._warn(end_s, now)]
        if self.stopping:
            if now >= self.kill_at_s:
                self._kill(now)
            due.append(self.kill_at_s)
        if self.log_cap.limit_bytes is not None:
            if now >= self.log_check_at_s:
                self.log_cap.check()
                self.log_check_at_s = now + LOG_CHECK_S
            due.append(self.log_check_at_s)
        self._mark_ending()
        return min(due) if due else None

    def _warn(self, end_s: float, now: float) -> List[float]:
        """Send the warning signal when it is time; returns when that will be."""
        number = self.spec.get("warn_signal")
        if number is None or self.warned:
            return []
        warn_at_s = end_s - float(self.spec.get("warn_before_s") or 0)
        if now < warn_at_s:
            return [warn_at_s]
        self.warned = True
        if self.spec.get("warn_all"):
            self._signal_all((number,))
        else:
            self._signal_main(number)
        return []

    def _begin_stop(self, reason: Optional[str], grace_s: float, now: float) -> None:
        """TERM and CONT to everything; the reason is kept only if the job had not ended by itself."""
        if self.main_status is None:
            self.reason = reason
        self.stopping = True
        self.kill_at_s = now + grace_s
        self._mark_ending()
        reach("shim.before_term")
        self._signal_all((signal.SIGTERM, signal.SIGCONT))

    def _mark_ending(self) -> None:
        """Say in the spool that the job is ending, each time there is news."""
        if not self.stopping or (self.childless and self.marker is None):
            return
        status = self.main_status
        marker: Dict[str, Any] = {
            "exit_code": os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None,
            "stopping": self.reason,
            "unkillable": self._unkillable(),
        }
        if marker == self.marker:
            return
        self.marker = marker
        try:
            spool.write_json(self.directory, spool.ENDING, marker)
        except OSError:
            return  # it informs only: the exit record does not need it
        self._wake()

    def _unkillable(self) -> List[int]:
        if self.first_kill_s is None or time.monotonic() < self.first_kill_s + UNKILLABLE_AFTER_S:
            return []
        return sorted(item.pid for item in self._living())

    def _kill(self, now: float) -> None:
        """One sweep of SIGKILL; the next comes soon, and more slowly when it does not help."""
        if self.first_kill_s is None:
            self.first_kill_s = now
            reach("shim.before_kill")
        self.enclosure.kill()
        processes.kill_sweep(self._living, os.getpid())
        self._reap()
        slow = now > self.first_kill_s + UNKILLABLE_AFTER_S
        self.kill_at_s = time.monotonic() + (SLOW_SWEEP_S if slow else SWEEP_S)

    def _living(self) -> List[processes.Process]:
        return processes.descendants([os.getpid()])

    def _signal_all(self, numbers: Any) -> None:
        processes.send_signal(self._living, numbers, set())

    def _signal_main(self, number: int) -> None:
        if self.main_status is None:  # not reaped yet, so the pid is still its own
            try:
                os.kill(self.main_pid, number)
            except OSError:
                pass

    def _obey(self, data: bytes) -> None:
        """Carry out what the agent left in the control FIFO and in the spool."""
        for line in data.splitlines():
            try:
                message = dict(json.loads(line))
            except (ValueError, TypeError):
                continue
            number = message.get("signal")
            if isinstance(number, int) and 0 < number < 65:
                self._signal_all((number,))
            if "time_limit_s" in message:
                self._set_limit(message["time_limit_s"])
            self._stop_as_ordered(message.get("stop"))
        self._read_limit()
        self._stop_as_ordered(spool.read_json(self.directory, spool.STOP))

    def _stop_as_ordered(self, order: Optional[Dict[str, Any]]) -> None:
        """Begin the end, or shorten the grace of one that has begun."""
        if order is None:
            return
        now = time.monotonic()
        grace_s = float(order.get("grace_s", 0.0))
        if not self.stopping:
            self._begin_stop(order.get("reason"), grace_s, now)
        elif self.first_kill_s is None:
            self.kill_at_s = min(self.kill_at_s, now + grace_s)

    def _read_limit(self) -> None:
        changed = spool.read_json(self.directory, spool.LIMIT)
        if changed is not None:
            self._set_limit(changed.get("time_limit_s"))

    def _set_limit(self, limit_s: Optional[float]) -> None:
        if limit_s != self.limit_s:
            self.limit_s = limit_s
            self.warned = False

    def _measured_record(self) -> Dict[str, Any]:
        """The exit record of a job that was forked."""
        self.log_cap.check()
        error, status = None, self.main_status
        if self.launch_error is not None:
            error = self.launch_error["error"]
            if self.launch_error["exit_code"] is None:
                status = None
        failed = status is not None and not (os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0)
        if self.reason is None and failed and self.enclosure.memory_kills() > 0:
            self.reason = "out_of_memory"
        record = records.exit_record(self.attempt, status, self.reason, error, self.claim["started_at"])
        record["log_bytes"], record["log_dropped_bytes"] = self.log_cap.sizes()
        if status is not None:
            record["run_s"] = round(time.monotonic() - self.started_s, 6)
            record["cpu_s"] = round(self.cpu_s, 6)
            record["max_rss_mib"] = round(self.max_rss_kib / 1024, 3)
        return record

    def _forget_secrets(self) -> None:
        for name in (spool.ENVIRONMENT, spool.SCRIPT):
            spool.unlink(os.path.join(self.directory, name))

    def _free_space(self) -> None:
        """Give up what the spool can do without, so that the exit record fits on a full disk."""
        self.log_cap.free_space()
        for name in (spool.SPEC, spool.LIMIT, spool.SHIM_LOG, spool.ENDING):
            spool.unlink(os.path.join(self.directory, name))


def _drain(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except BlockingIOError:
        return b""
