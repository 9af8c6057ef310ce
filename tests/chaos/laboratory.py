"""A gpuq under attack: clients that write down what was promised, a supervisor, and the check of every promise.

Owns: submitting evidence jobs and recording each acknowledgement durably; starting the daemon again when it dies; the
list of violations at the end. May import: tests.e2e.harness and the standard library.

One thing to know: nothing here takes gpuq's word for what happened. What ran is read from the evidence file that the
jobs write and the locks they hold, what was promised from the client's own log; gpuq's answers are only compared.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tests.e2e.harness import FINAL, ApiError, Json, Queue, eventually, is_alive

EVIDENCE_JOB = Path(__file__).with_name("evidence_job.py")
RETRY_S = 0.02
ANSWER_WITHIN_S = 30.0
FINAL_WITHIN_S = 30.0
DEATH_MARGIN_S = 2.0  # beyond the grace time, until nothing of a cancelled job may live
RELEASED_WITHIN_S = 20.0  # an agent repeats what was not taken every 5 s
PASSING = ("Nothing was changed", "The disk that holds")
UNANSWERED = (OSError, http.client.HTTPException, ValueError)
EXPECTED_DEATHS = (-9, 70)  # SIGKILL, and the code of the failpoints' `exit`

Answer = TypeVar("Answer")


class Line(NamedTuple):
    """One line of the evidence file."""

    what: str
    tag: str
    attempt: str
    pid: int
    boot: str
    monotonic_s: float
    detail: str


@dataclass
class Promise:
    """What a client asked for, and what it was told."""

    tag: str
    key: str
    code: int
    grace_s: float
    starts_allowed: int = 1
    id: str | None = None  # acknowledged, once there is one
    cancelled_at_s: float | None = None  # when the acknowledgement of its cancel arrived
    disturbed: bool = False  # its processes may have been killed, or it was told to end: then its code is not foretold


@dataclass
class Laboratory:
    """One queue, its clients' memory, and its supervisor."""

    queue: Queue
    directory: Path
    answer_within_s: float = ANSWER_WITHIN_S
    final_within_s: float = FINAL_WITHIN_S
    promises: list[Promise] = field(default_factory=list)
    deaths: list[int] = field(default_factory=list)
    _supervisor: threading.Thread | None = None
    _wanted: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # --- the daemon and who looks after it ---------------------------------------------------------------

    def start(self, revive: bool = True) -> Laboratory:
        """Start the daemon and keep it running, as systemd or a person would; without `revive` it stays dead."""
        self._wanted = revive
        self.queue.launch()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self._supervisor.start()
        eventually(self.queue.answers, lambda: f"the daemon answers: {self.queue.last_words()}")
        return self

    def _supervise(self) -> None:
        while True:
            process = self.queue.process
            assert process is not None
            code = process.wait()
            self.deaths.append(code)
            with self._lock:
                fails_to_start = self.deaths[-3:] == [code] * 3 and code not in EXPECTED_DEATHS
                if not self._wanted or fails_to_start:
                    return
                self.queue.launch()

    def kill_daemon(self, revive: bool = True) -> None:
        """`kill -9`; without `revive` it stays dead, and its agent has ended on return."""
        with self._lock:
            self._wanted = revive
            process = self.queue.process
        assert process is not None
        process.kill()
        if not revive:
            self.await_death()

    def await_death(self) -> None:
        """Wait until the daemon that is not to be revived, and its agent with it, have ended."""
        assert self._supervisor is not None
        self._supervisor.join(ANSWER_WITHIN_S)
        eventually(lambda: not self.queue.agents(), "the agent ends with its daemon")

    def stop(self) -> None:
        """Stop the daemon in an orderly way; it may be made to die instead."""
        with self._lock:
            self._wanted = False
            process, supervisor = self.queue.process, self._supervisor
        assert process is not None
        assert supervisor is not None
        process.terminate()
        supervisor.join()

    def restart(self) -> None:
        """Stop it and start it again."""
        self.stop()
        self.start()

    # --- clients -----------------------------------------------------------------------------------------

    def _insist(self, ask: Callable[[], Answer]) -> Answer:
        """Ask until there is an answer; a refusal for want of disk space is no answer."""
        end = time.monotonic() + self.answer_within_s
        while True:
            try:
                return ask()
            except ApiError as error:
                # 5xx is a fault of gpuq; a journal that cannot be written and a full disk are said to be passing.
                if error.status < 500 and not error.message.startswith(PASSING):
                    raise
                last: Exception = error
            except UNANSWERED as error:
                last = error
            if time.monotonic() > end:
                raise AssertionError(f"no answer within {self.answer_within_s:g} s: {last!r}") from last
            time.sleep(RETRY_S)

    def submit(
        self, run_s: float = 0.0, code: int = 0, mode: str = "plain", grace_s: float = 0.2, replies_lost: int = 0,
        **fields: Any,
    ) -> Promise:  # fmt: skip
        """Submit an evidence job, with the same key until it is acknowledged; write the acknowledgement down."""
        tag = uuid.uuid4().hex[:12]
        allowed = 1_000 if fields.get("requeue") else 1
        promise = Promise(tag=tag, key=f"key-{tag}", code=code, grace_s=grace_s, starts_allowed=allowed)
        argv = [sys.executable, "-S", "-E", str(EVIDENCE_JOB), str(self.directory), tag, str(run_s), str(code), mode]
        body = self.queue.body(
            argv, key=promise.key, name=tag, grace_s=grace_s, environment={"CHAOS_TAG": tag}, **fields
        )
        self.promises.append(promise)
        for _ in range(replies_lost):
            self._insist(lambda: self.queue.api.post("/v1/jobs", body))
        promise.id = str(self._insist(lambda: self.queue.api.post("/v1/jobs", body))["id"])
        self._write_down("submit", promise)
        return promise

    def let_go(self, promise: Promise) -> None:
        """Let a job with a run time of -1 end by itself."""
        (self.directory / f"go-{promise.tag}").touch()

    def cancel(self, promise: Promise) -> None:
        """Cancel until that is acknowledged."""
        promise.disturbed = True
        self._insist(lambda: self.queue.api.post("/v1/cancel", {"ids": [promise.id], "grace_s": promise.grace_s}))
        promise.cancelled_at_s = time.monotonic()
        self._write_down("cancel", promise)

    def requeue(self, promise: Promise) -> None:
        """Requeue once: after a lost answer it looks first whether the request was taken."""
        assert promise.id is not None
        promise.disturbed = True
        promise.starts_allowed += 1
        restarts = self.job(promise.id)["restarts"]

        def ask() -> None:
            job = self.job(promise.id or "")
            if job["restarts"] == restarts and job["stopping"] != "requeue":
                self.queue.api.post("/v1/requeue", {"ids": [promise.id], "hold": False})

        try:
            self._insist(ask)
        except ApiError:
            promise.starts_allowed -= 1
            raise
        self._write_down("requeue", promise)

    def close(self) -> None:
        """End everything; fails when something of this home lives on."""
        with self._lock:
            self._wanted = False
        self.queue.close()

    def _write_down(self, verb: str, promise: Promise) -> None:
        record = {"verb": verb, "id": promise.id, "tag": promise.tag, "monotonic_s": time.monotonic()}
        descriptor = os.open(self.directory / "acknowledged", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, json.dumps(record).encode() + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    # --- looking -----------------------------------------------------------------------------------------

    def job(self, id_: str) -> Json:
        """One job, as soon as somebody answers."""
        return self._insist(lambda: self.queue.job(id_))

    def evidence(self) -> list[Line]:
        """What the jobs have written so far."""
        path = self.directory / "evidence"
        rows = [row.split() for row in path.read_text().splitlines()] if path.exists() else []
        return [Line(row[0], row[1], row[2], int(row[3]), row[4], float(row[5]), row[6]) for row in rows]

    def starts(self, promise: Promise) -> int:
        """How often its program has started."""
        return sum(line.what == "start" and line.tag == promise.tag for line in self.evidence())

    def state(self, promise: Promise) -> str:
        """What gpuq says of the job now."""
        assert promise.id is not None
        return str(self.job(promise.id)["state"])

    def has_begun(self, promise: Promise) -> None:
        """Wait until its program has started, or it ended without."""
        eventually(
            lambda: self.starts(promise) > 0 or self.state(promise) in FINAL,
            lambda: f"job {promise.id} starts: {self.state(promise)}",
        )

    def is_running(self, promise: Promise) -> str:
        """Wait until gpuq, too, says so; the attempt."""
        eventually(lambda: self.state(promise) == "RUNNING", lambda: f"job {promise.id} runs: {self.state(promise)}")
        return str(self.job(promise.id or "")["attempt"])

    def kill_shim(self, promise: Promise) -> None:
        """`kill -9` the process that guards a running job."""
        promise.disturbed = True
        os.kill(int(self.queue.claim(self.is_running(promise))["shim_pid"]), signal.SIGKILL)

    def settle(self) -> list[str]:
        """Wait until every acknowledged job is final and its spool entry released; what never is, is named."""
        ids = [promise.id for promise in self.promises if promise.id is not None]
        end = time.monotonic() + self.final_within_s
        while True:
            jobs = {job["id"]: job for job in self._jobs()}
            stuck = [f"job {id_} is still {jobs[id_]['state']}" for id_ in ids if id_ in jobs]
            stuck = [text for text in stuck if text.rsplit(" ", 1)[1] not in FINAL]
            if not stuck or time.monotonic() > end:
                return stuck
            self._insist(lambda: self._wait_for(stuck[0].split()[1]))  # noqa: B023  (called at once)

    def _wait_for(self, id_: str) -> None:
        self.queue.api.exchange("GET", "/v1/wait", query={"ids": id_, "timeout_s": 1})

    def _jobs(self) -> list[Json]:
        return self._insist(self.queue.jobs)

    def unreleased(self, within_s: float = RELEASED_WITHIN_S) -> list[str]:
        """Attempts that stay in the spool although their end is known."""
        spool = self.queue.home / "spool"
        end = time.monotonic() + within_s
        while left := [path.name for path in spool.iterdir() if path.name.count("-") == 4]:
            if time.monotonic() > end:
                break
            time.sleep(RETRY_S)
        return [f"the spool still holds attempt {name}" for name in left]

    # --- the promises ------------------------------------------------------------------------------------

    def violations(self) -> list[str]:
        """Every promise that was broken, in sentences; call it after `settle`."""
        lines = self.evidence()
        jobs = {job["name"]: job for job in self._jobs()}
        found = [f"{line.tag} found {line.detail} in use" for line in lines if line.what == "violation"]
        found += self._twice(lines, jobs)
        for promise in self.promises:
            if promise.id is None:
                continue
            job = jobs.get(promise.tag)
            if job is None or job["id"] != promise.id:
                found.append(f"job {promise.id} was acknowledged and is gone")
            else:
                found += _dishonest(promise, self.job(promise.id), [line for line in lines if line.tag == promise.tag])
        found += self._survivors()
        found += self._gaps()
        unasked = [code for code in self.deaths if code not in (*EXPECTED_DEATHS, 0)]
        return found + [f"the daemon ended by itself with code {code}" for code in unasked]

    def _twice(self, lines: Sequence[Line], jobs: Mapping[str, Json]) -> list[str]:
        starts_of_attempt = Counter((line.tag, line.attempt) for line in lines if line.what == "start")
        found = [f"attempt {attempt} of {tag} started {count} times"
                 for (tag, attempt), count in starts_of_attempt.items() if count > 1]  # fmt: skip
        starts = Counter(line.tag for line in lines if line.what == "start")
        allowed = {promise.tag: promise.starts_allowed for promise in self.promises}
        evicted = {tag: int(job["evictions"]) for tag, job in jobs.items()}  # each one allows another start
        found += [f"{tag} started {count} times, allowed {allowed.get(tag, 0)}, stopped {evicted.get(tag, 0)} times"
                  for tag, count in starts.items() if count > allowed.get(tag, 0) + evicted.get(tag, 0)]  # fmt: skip
        names = Counter(job["name"] for job in self._jobs())
        return found + [f"submit {name} made {count} jobs" for name, count in names.items() if count > 1]

    def _survivors(self) -> list[str]:
        """Processes of cancelled jobs after the grace, and of final jobs at any time."""
        cancelled = {each.tag: each for each in self.promises if each.cancelled_at_s is not None}
        for tag in living_tags():
            if tag in cancelled:
                due_s = (cancelled[tag].cancelled_at_s or 0.0) + cancelled[tag].grace_s + DEATH_MARGIN_S
                time.sleep(max(0.0, due_s - time.monotonic()))
        over = {job["name"] for job in self._jobs() if job["state"] in FINAL} | set(cancelled)
        living = living_tags()
        return [f"{tag} is over, and processes {pids} of it live" for tag, pids in living.items() if tag in over]

    def _gaps(self) -> list[str]:
        entries = self._insist(lambda: self.queue.api.get("/v1/events", limit=1_000_000))["events"]
        numbers = [int(entry["seq"]) for entry in entries]
        if numbers != list(range(1, len(numbers) + 1)):
            return [f"event numbers have gaps or repeat: {numbers[:20]} ..."]
        return []


def living_tags() -> dict[str, list[int]]:
    """Living processes of evidence jobs, by tag."""
    prefix = b"CHAOS_TAG="
    found: dict[str, list[int]] = defaultdict(list)
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            entries = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for entry in entries:
            if entry.startswith(prefix) and is_alive(int(name)):
                found[entry[len(prefix) :].decode()].append(int(name))
    return found


def _dishonest(promise: Promise, job: Json, lines: Sequence[Line]) -> list[str]:
    """What gpuq says of a job's end, against what the job itself wrote."""
    found = []
    last = [line for line in lines if line.attempt == job["attempt"]]
    end = next((line for line in last if line.what == "end"), None)
    state, code = job["state"], job["exit_code"]
    told = f"job {promise.id} is {state} with code {code} ({job['reason']}: {job['message']})"
    if state not in FINAL:
        found.append(f"{told}: it never ended")
    if state == "COMPLETED" and (end is None or end.detail != "0"):
        found.append(f"{told}, but it wrote {end.detail if end else 'no end'}")
    if end is None and code is not None:
        found.append(f"{told}, but it never wrote an exit code")
    if end is not None and code is not None and int(end.detail) != code:
        found.append(f"{told}, but it wrote {end.detail}")
    if state == "NODE_FAIL" and code is not None:
        found.append(f"{told}: a code that nobody saw")
    if not promise.disturbed and (end is None or code != promise.code):
        found.append(f"{told}, but nobody disturbed it and it was to end with {promise.code}")
    return found
