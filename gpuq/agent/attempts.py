"""The agent's view of all attempts. Owns requests about attempts and the frames that answer them.

May import: children, containment, failpoints, frames, preparation, processes, records, spool, used, verdict. One
thing to know: it may be thrown away at any instant; in memory are deadlines, the last frames sent and a few samples.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any, Callable, Dict, List, Optional

from . import containment, preparation, processes, records, spool, verdict
from .children import Forker
from .failpoints import mutant, reach
from .frames import Frame, note
from .used import Uses
from .verdict import Phase, Verdict

SCAN_S = 1.0
REPEAT_S = 5.0
ASK_AGAIN_S = 2.0
MAXIMUM_ASKS = 10
LEFTOVER_SWEEP_S = 0.05
SLOW_SWEEP_S = 1.0
UNKILLABLE_AFTER_S = 5.0
SHIM_PATIENCE_S = 2.0
UNGUARDED = (Phase.LOST, Phase.FENCED)  # no shim sees to what may still live


class _Entry:
    """What is remembered of one attempt."""

    def __init__(self) -> None:
        self.sent: Optional[Frame] = None
        self.repeat_at_s = 0.0
        self.asked_at_s: Optional[float] = None
        self.asks = 0
        self.stop_by_s: Optional[float] = None
        self.sweeping_since_s: Optional[float] = None
        self.look_at_s: Optional[float] = None
        self.refusal: Optional[Frame] = None
        self.live = True
        self.owner: Dict[str, Any] = {}  # job and GPUs, as in its spec


class Attempts:
    """Carries out the daemon's requests; `send` gets the frames."""

    def __init__(
        self,
        place: spool.Spool,
        forker: Forker,
        level: containment.Containment,
        gpus: Callable[[], List[Dict[str, Any]]],
        send: Callable[[Frame], None],
    ) -> None:
        self._spool = place
        self._forker = forker
        self._containment = level
        self._gpus = gpus
        self._send = send
        self._entries: Dict[str, _Entry] = {}
        self._scan_at_s = 0.0
        self.uses = Uses(place.directory)  # of GPUs

    # Requests of the daemon

    def start(self, attempt: str, spec: Dict[str, Any]) -> None:
        """Start once; asked again, it only reports or asks the forker again."""
        entry = self._entries.setdefault(attempt, _Entry())
        directory = self._spool.directory(attempt)
        if mutant("double-start"):
            spool.unlink(os.path.join(directory, spool.CLAIM))
        if entry.refusal is None and not os.path.exists(os.path.join(directory, spool.CLAIM)):
            try:
                self._prepare(directory, spec)
                self._ask(attempt, entry)
            except (OSError, preparation.SpecRefused) as error:
                self._refuse(attempt, entry, error)
        self.refresh(attempt, force=True)

    def _prepare(self, directory: str, spec: Dict[str, Any]) -> None:
        if not self._spool.in_place():
            raise preparation.SpecRefused(f"The spool {self._spool.path} has gone; start this node's agent again.")
        reach("agent.before_mkdir")
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            pass
        reach("agent.after_mkdir")
        preparation.write_attempt(directory, spec, self._containment, self._gpus())

    def _refuse(self, attempt: str, entry: _Entry, error: Exception) -> None:
        """Nothing was started: say so, unless an earlier request's shim has claimed it meanwhile."""
        text = str(error)
        if isinstance(error, OSError):
            text = f"The node's spool cannot take the job ({error.strerror or error}); free space in it."
        note(f"attempt {attempt}: {text}")
        directory = self._spool.directory(attempt)
        if entry.asks == 0 and not os.path.exists(os.path.join(directory, spool.CLAIM)):
            self._spool.remove(attempt)
            record = records.exit_record(attempt, None, None, text, None)
            entry.refusal = {"type": "attempt", "phase": Phase.ENDED.value, **record}

    def _ask(self, attempt: str, entry: _Entry) -> None:
        reach("agent.before_fork_request")
        entry.asked_at_s = time.monotonic()
        entry.asks += self._forker.request(attempt)

    def stop(self, attempt: str, reason: Any, grace_s: float) -> None:
        """Leave the request in the spool and tell the shim; the first reason and the shortest grace count."""
        directory = self._spool.directory(attempt)
        found = verdict.verdict(directory)
        claim = found.claim or {}
        if found.phase in verdict.LIVE:
            entry = self._entries.setdefault(attempt, _Entry())
            by_s = time.monotonic() + grace_s
            entry.stop_by_s = by_s if entry.stop_by_s is None else min(by_s, entry.stop_by_s)
            order = self._recorded_stop(directory, reason, grace_s)
            if found.phase is Phase.STARTING:
                self._ask(attempt, entry)  # its shim records the end of what never ran
            elif verdict.shim_is_stopped(claim):
                # Woken up, it does the rest itself; if it cannot be, `_enforce` does it after the grace.
                processes.send_signal(lambda: _shim(claim), (signal.SIGCONT,), set())
            self._ring(attempt, {"stop": order})
        self.refresh(attempt, force=True)

    def _recorded_stop(self, directory: str, reason: Any, grace_s: float) -> Dict[str, Any]:
        """The stop that counts; it is in the spool for a shim that has not claimed yet and for a later agent."""
        known = spool.read_json(directory, spool.STOP)
        if known is not None and known.get("grace_s", 0.0) <= grace_s:
            return known
        order = {"reason": reason if known is None else known.get("reason"), "grace_s": grace_s}
        try:
            spool.write_json(directory, spool.STOP, order)
        except OSError as error:
            note(f"a stop is not in the spool ({error.strerror}); it is only told to the shim.")
        return order

    def signal(self, attempt: str, number: int) -> None:
        """Have the shim send a signal to every process."""
        if not self._ring(attempt, {"signal": number}):
            note(f"attempt {attempt}: signal {number} found no running job.")

    def limit(self, attempt: str, time_limit_s: Optional[float]) -> None:
        """Set a new time limit; it also counts for a job that is just being started."""
        directory = self._spool.directory(attempt)
        if verdict.verdict(directory).phase in verdict.LIVE:
            self._ring(attempt, {"time_limit_s": time_limit_s})
            spool.write_json(directory, spool.LIMIT, {"time_limit_s": time_limit_s})
            self._ring(attempt, {})

    def fence(self, attempt: str) -> None:
        """Make sure that the attempt never starts here, if it has not; then report what is true.

        With no directory nobody knows whether it ran: what bears its marker is ended before it is called fenced.
        """
        self._entries.setdefault(attempt, _Entry())
        directory = self._spool.directory(attempt)
        if mutant("skip-fence"):
            self._send(Verdict(Phase.FENCED, {}).frame(attempt))
            return
        if verdict.verdict(directory).phase in (Phase.ABSENT, Phase.STARTING):
            os.makedirs(directory, mode=0o700, exist_ok=True)
            lock = spool.make_claim(directory, {"fenced": True, "containment": self._containment.as_json()})
            if lock is not None:
                os.close(lock)
                self._entries[attempt].live = True
                for name in (spool.ENVIRONMENT, spool.SCRIPT):
                    spool.unlink(os.path.join(directory, name))
        self.refresh(attempt, force=True)

    def release(self, attempt: str) -> None:
        """Remove what is over from the spool; what lives stays."""
        entry = self._entries.get(attempt)
        found = verdict.verdict(self._spool.directory(attempt))
        swept = found.phase not in UNGUARDED or (entry is not None and not entry.live)
        if found.phase in verdict.LIVE or not swept:
            note(f"attempt {attempt}: it is {found.phase.value}, so its spool entry is not released.")
            self.refresh(attempt, force=True)
            return
        reach("agent.before_release")
        containment.Enclosure(self._containment, attempt).remove()
        self._spool.remove(attempt)
        self._entries.pop(attempt, None)
        reach("agent.after_release")
        self._send(Verdict(Phase.ABSENT, {}).frame(attempt))

    def _ring(self, attempt: str, message: Dict[str, Any]) -> bool:
        line = json.dumps(message).encode("ascii") + b"\n"
        return spool.ring(os.path.join(self._spool.directory(attempt), spool.CONTROL), line)

    # What the spool says

    def report_all(self) -> List[Frame]:
        """The frames of every attempt in the spool."""
        for attempt in self._spool.attempts():
            self._entries.setdefault(attempt, _Entry())
        return [frame for frame in (self._look(attempt) for attempt in sorted(self._entries)) if frame]

    def scan(self) -> None:
        """Report every attempt again."""
        for attempt in {*self._spool.attempts(), *self._entries}:
            self.refresh(attempt, force=True)

    def refresh(self, attempt: str, force: bool = False) -> None:
        """Look at one attempt and report it if there is news."""
        entry = self._entries.get(attempt)
        before = entry.sent if entry is not None else None
        frame = self._look(attempt)
        if before is None and not force and frame["phase"] == Phase.ABSENT.value:
            return
        if force or frame != before:
            if frame["phase"] == Phase.ENDED.value:
                reach("agent.before_report_ended")
            self._send(frame)
            if frame["phase"] == Phase.ENDED.value and mutant("release-before-commit"):
                self._spool.remove(attempt)

    def shim_ended(self, attempt: str) -> None:
        """The forker says that a shim is through with an attempt: if it never claimed it, another one may."""
        entry = self._entries.get(attempt)
        if entry is None or not entry.live:
            return
        self.refresh(attempt)
        starting = entry.sent is not None and entry.sent["phase"] == Phase.STARTING.value
        if starting and entry.asks < MAXIMUM_ASKS:
            self._ask(attempt, entry)

    def ask_again(self) -> None:
        """A new forker is there: ask it for every shim that has not appeared."""
        for attempt, entry in self._entries.items():
            if entry.asked_at_s is not None and entry.sent is not None and entry.sent["phase"] == Phase.STARTING.value:
                self._ask(attempt, entry)

    def _look(self, attempt: str) -> Frame:
        entry = self._entries.setdefault(attempt, _Entry())
        directory = self._spool.directory(attempt)
        found = verdict.verdict(directory)
        frame = found.frame(attempt)
        now = time.monotonic()
        entry.look_at_s = None
        if found.phase in UNGUARDED and not self._swept(attempt, entry, found, now):
            frame = verdict.leftovers_frame(attempt, found, directory, self._stubborn(attempt, entry, found, now))
        elif found.phase is Phase.ABSENT and entry.refusal is not None:
            frame = entry.refusal
        entry.live = frame["phase"] in verdict.LIVE
        if entry.live and not entry.owner:
            spec = spool.read_json(directory, spool.SPEC) or {}
            entry.owner = {"job": spec.get("job"), "gpus": spec.get("gpus") or []}
        frame = {**frame, **entry.owner}
        if found.phase in (Phase.ENDED, Phase.LOST):
            frame.update(self.uses.told(attempt))
        entry.sent = frame
        entry.repeat_at_s = now + REPEAT_S
        if frame["phase"] == Phase.ABSENT.value:
            self._entries.pop(attempt)
            self.uses.forget(attempt)
        return frame

    def _swept(self, attempt: str, entry: _Entry, found: Verdict, now: float) -> bool:
        """Kill what lives without a shim; True when nothing is left."""
        if not entry.live:
            return True
        claim = found.claim or {}
        if mutant("kill-by-bare-pid") and "shim_pid" in claim:
            os.kill(int(claim["shim_pid"]), signal.SIGKILL)
        enclosure, shim_pid = verdict.enclosure_of(claim, attempt), int(claim.get("shim_pid") or 0)
        if processes.kill_sweep(lambda: containment.attempt_processes(enclosure, attempt), shim_pid):
            enclosure.kill()
        if not containment.attempt_processes(enclosure, attempt):
            enclosure.remove()
            return True
        if entry.sweeping_since_s is None:
            entry.sweeping_since_s = now
        slow = now > entry.sweeping_since_s + UNKILLABLE_AFTER_S
        entry.look_at_s = now + (SLOW_SWEEP_S if slow else LEFTOVER_SWEEP_S)
        return False

    def _stubborn(self, attempt: str, entry: _Entry, found: Verdict, now: float) -> List[int]:
        """Pids that have outlived SIGKILL for long enough to be called unkillable."""
        if entry.sweeping_since_s is None or now < entry.sweeping_since_s + UNKILLABLE_AFTER_S:
            return []
        enclosure = verdict.enclosure_of(found.claim or {}, attempt)
        return sorted(item.pid for item in containment.attempt_processes(enclosure, attempt))

    def on_gpus(self) -> Dict[str, List[str]]:
        """The running attempts, with the UUIDs of their GPUs."""
        entries = self._entries.items()
        running = {name: each for name, each in entries if each.sent and each.sent["phase"] == Phase.RUNNING.value}
        return {name: each.owner.get("gpus") or [] for name, each in running.items()}

    # Time

    def due_s(self) -> float:
        """When `tick` has something to do."""
        due = [entry.look_at_s for entry in self._entries.values() if entry.look_at_s is not None]
        if self._entries:
            due.append(self._scan_at_s)
        return min(due) if due else float("inf")

    def tick(self) -> None:
        """Look at what is due: leftovers often, locks of the living once a second, the ended every few seconds."""
        now = time.monotonic()
        scan = now >= self._scan_at_s
        if scan:
            self._scan_at_s = now + SCAN_S
        for attempt, entry in list(self._entries.items()):
            if entry.look_at_s is not None and now >= entry.look_at_s:
                self.refresh(attempt)
            elif scan and entry.live:
                self._enforce(attempt, entry, now)
                self.refresh(attempt)
            elif scan and now >= entry.repeat_at_s:
                self.refresh(attempt, force=True)

    def _enforce(self, attempt: str, entry: _Entry, now: float) -> None:
        """See to it that asked shims appear, and that stops happen even if the shim cannot act."""
        phase = entry.sent["phase"] if entry.sent is not None else None
        if phase == Phase.STARTING.value and entry.asked_at_s is not None and now > entry.asked_at_s + ASK_AGAIN_S:
            if entry.asks >= MAXIMUM_ASKS:
                self._give_up(attempt, entry)
            else:
                self._ask(attempt, entry)
        if entry.stop_by_s is None or now < entry.stop_by_s + SHIM_PATIENCE_S:
            return
        found = verdict.verdict(self._spool.directory(attempt))
        if found.claim is None or found.phase not in (Phase.RUNNING, Phase.ENDING):
            return
        if found.phase is Phase.RUNNING or verdict.shim_is_stopped(found.claim):  # it has not acted
            self._kill_without_shim(attempt, found.claim)

    def _give_up(self, attempt: str, entry: _Entry) -> None:
        """No shim could claim it, so no later one may: fence it, and report that nothing was started."""
        directory = self._spool.directory(attempt)
        try:
            lock = spool.make_claim(directory, {"fenced": True})
            if lock is None:
                return
            os.close(lock)
            text = "The node could not start a process to guard the job; look at its memory and disk space."
            record = records.exit_record(attempt, None, None, text, None)
            spool.write_json(directory, spool.EXIT, record, durable=True)
        except OSError as error:
            entry.asked_at_s = time.monotonic()
            note(f"attempt {attempt}: no shim has claimed it and it cannot be fenced ({error.strerror}).")

    def _kill_without_shim(self, attempt: str, claim: Dict[str, Any]) -> None:
        """The grace is over and the shim does not act: kill the job, then the shim, which makes it lost."""
        pid = int(claim["shim_pid"])
        verdict.enclosure_of(claim, attempt).kill()
        if processes.kill_sweep(lambda: processes.descendants([pid]), pid):
            return
        directory = self._spool.directory(attempt)
        # A shim that is through with this attempt may guard another one: the lock tells.
        processes.send_signal(lambda: _shim(claim) if spool.is_locked(directory) else [], (signal.SIGKILL,), set())

    def stalled(self) -> List[str]:
        """Attempts whose shim is stopped."""
        found = []
        for attempt, entry in self._entries.items():
            if entry.live and entry.sent is not None and entry.sent["phase"] != Phase.STARTING.value:
                claim = spool.read_json(self._spool.directory(attempt), spool.CLAIM)
                if claim is not None and verdict.shim_is_stopped(claim):
                    found.append(attempt)
        return found

    def shims(self) -> Dict[int, str]:
        """Shim pids of living attempts."""
        found: Dict[int, str] = {}
        for attempt, entry in self._entries.items():
            if entry.live:
                claim = spool.read_json(self._spool.directory(attempt), spool.CLAIM) or {}
                if "shim_pid" in claim:
                    found[int(claim["shim_pid"])] = attempt
        return found


def _shim(claim: Dict[str, Any]) -> List[processes.Process]:
    """The shim of a claim, if it is the very process that claimed."""
    item = processes.process(int(claim["shim_pid"]))
    return [item] if item is not None and item.start_ticks == claim.get("start_ticks") else []
