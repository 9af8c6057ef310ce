"""The daemon as a process: wiring, start, signals, stop. Imports all of daemon, journal, links, config.

The order of a start: private home, journal (its lock keeps a second daemon out), state, socket, agents, planner.
A stop ends the agents and leaves every job alone; SIGTERM and SIGINT stop with exit code 0.

One thing to know: nothing is forked while the journal is open; agents are started by exec.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpuq.config import Config, NodeConfig, Paths, find_paths, load
from gpuq.core.model import BlobId, Job, NodeName, Reach
from gpuq.core.requests import NodeReached, SkipIds, Tick
from gpuq.daemon import launch
from gpuq.daemon.api import Api, Callers, bind_socket
from gpuq.daemon.connection import AgentConfig, Connection
from gpuq.daemon.desk import Desk
from gpuq.daemon.fleet import Fleet
from gpuq.daemon.log import open_log
from gpuq.daemon.loop import Loop
from gpuq.daemon.planner import DaemonPlanner
from gpuq.daemon.ports import SystemClock
from gpuq.daemon.verbs import forget_ended_before
from gpuq.errors import DaemonUnreachable, GpuqError, JournalError
from gpuq.hardware.catalogue import simulated
from gpuq.journal.store import Journal
from gpuq.links.local import LocalLink
from gpuq.socketpath import bind_address, connect_address

log = logging.getLogger("gpuq.main")

LOCAL = NodeName("local")
TICK_EVERY_S = 1.0
IDS_SKIPPED = 100_000  # when nobody knows how many entries a rollback lost
UPKEEP_EVERY_S = 3600.0
MEND_EVERY_S = 5.0
START_WITHIN_S = 30.0
COLLECT_AFTER_OBJECTS = 20_000
POLL_S = 0.01
OWNED = "another gpuq daemon owns"  # begins the journal's words to a second daemon
SOON_S = 1.0  # in which a daemon that owns the journal answers, or is about to end


# --- running --------------------------------------------------------------------------------------------


def run(*, foreground: bool = True, allow_rollback: bool = False) -> int:
    """Serve until told to stop; returns the exit code. Raises GpuqError when it cannot start.

    allow_rollback: go on although acknowledged entries of the journal are missing (a backup was put back).
    """
    config, paths = load()
    os.umask(0o077)
    home = Path(paths.home)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    journal = Journal.open(home, allow_rollback=allow_rollback)
    open_log(home / "daemon.log", config.daemon.log_level, foreground)
    try:
        asyncio.run(_serve(config, paths, home, journal))
    finally:
        journal.close()
    return 0


async def _serve(config: Config, paths: Paths, home: Path, journal: Journal) -> None:
    clock = SystemClock()
    newest = journal.events(journal.last_seq - 1, limit=1)
    if newest:
        clock.resume_from(newest[-1].stamp)
    loop = Loop(journal, clock)
    loop.load()
    _spare_garbage_collector()
    desk = _desk(config, paths, home, journal, loop)
    loop.on_actions = desk.fleet.carry_out
    loop.on_change = desk.planner.look_again
    _stop_on_signals(desk.stopping)
    api = Api(desk, Callers(config.daemon.admins, os.getuid()), os.getuid())
    with bind_address(paths.socket) as address:
        listener = bind_socket(Path(paths.socket), address)
    for warning in desk.warnings:
        log.warning("%s", warning)
    log.info("serving %s with %d jobs", paths.socket, len(loop.state.jobs))
    writer = asyncio.create_task(loop.run())
    for name in loop.state.nodes:  # what the journal says of a node is old until its agent says hello
        loop.ask_later(NodeReached(node=name, reach=Reach.SUSPECT))
    background = [writer, *map(asyncio.create_task, _chores(desk, journal, config.prune.forget_after_s))]
    if journal.lost_entries != 0:
        loop.ask_later(SkipIds(count=journal.lost_entries or IDS_SKIPPED))
    desk.fleet.start()
    await api.start(listener)
    try:
        await _until_stopped(desk.stopping, writer)
    finally:
        await api.stop()
        await desk.fleet.stop()
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        Path(paths.socket).unlink(missing_ok=True)
    try:
        loop.take_snapshot()
    except JournalError as error:  # the next start reads the entries instead, which takes longer
        log.warning("no snapshot was made: %s", error.message)
    log.info("stopped; running jobs go on")


def _spare_garbage_collector() -> None:
    """Look for cycles seldom: an answer of ten thousand objects is no garbage, and each look at it delays everyone."""
    gc.freeze()  # modules and the loaded state stay anyway
    gc.set_threshold(COLLECT_AFTER_OBJECTS, *gc.get_threshold()[1:])


async def _until_stopped(stopping: asyncio.Event, writer: asyncio.Task[None]) -> None:
    """Return when told to stop; raise when the writer died, since nothing can be promised then."""
    told = asyncio.create_task(stopping.wait())
    await asyncio.wait({told, writer}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if writer.done() and not writer.cancelled():
        writer.result()


def _stop_on_signals(stopping: asyncio.Event) -> None:
    running = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        running.add_signal_handler(number, stopping.set)


def _desk(config: Config, paths: Paths, home: Path, journal: Journal, loop: Loop) -> Desk:
    logs = Path(config.logs.directory) if config.logs.directory else home / "logs"
    places = launch.Places(home=home, logs=logs, log_limit_bytes=config.logs.limit_bytes or None)
    logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    connection = Connection(loop, _local_agent(config, home), places, _open_local)
    return Desk(
        loop=loop,
        journal=journal,
        fleet=Fleet([connection]),
        planner=DaemonPlanner(loop, config.planner, config.impact, config.accounts),
        places=places,
        home=home,
        socket=Path(paths.socket),
        log_path=home / "daemon.log",
        started_at=time.time(),
        warnings=tuple(journal.warnings),
        config_file=config.file,
        stated=config.stated,
    )


def _local_agent(config: Config, home: Path) -> AgentConfig:
    node = next((node for node in config.nodes if node.name == LOCAL), NodeConfig(LOCAL))
    return AgentConfig(
        name=LOCAL,
        spool=str(home / "spool"),
        simulate=_simulated_gpus(node),
        cpus=node.cpus,
        memory_mib=node.memory_mib,
        sample_every_s=config.gpus.sample_every_s,
        foreign_memory_mib=config.gpus.foreign_memory_mib,
        ignore=config.gpus.ignore,
        pynvml_path=_directory_of("pynvml"),
    )


def _simulated_gpus(node: NodeConfig) -> list[dict[str, Any]] | None:
    """Descriptions of simulated GPUs, or None for the real ones."""
    if not node.gpus and not node.simulate:
        return None
    found: list[dict[str, Any]] = []
    for entry in node.gpus:
        kind, _, count = entry.partition(":")
        try:
            found.extend(simulated(kind, int(count or 1)))
        except ValueError as error:
            raise GpuqError(f"gpuq.toml, [node.{node.name}] gpus: {error}") from None
    return found


def _directory_of(module: str) -> str | None:
    """Where an installed module lies, without importing it."""
    spec = find_spec(module)
    return os.path.dirname(spec.origin) if spec is not None and spec.origin else None


async def _open_local() -> LocalLink:
    return await LocalLink.open(lambda line: log.info("agent: %s", line))


def _chores(desk: Desk, journal: Journal, forget_after_s: float | None) -> list[Coroutine[Any, Any, None]]:
    return [desk.planner.run(), _tick(desk), _upkeep(desk, journal, forget_after_s), _mend(journal)]


async def _tick(desk: Desk) -> None:
    """Let time pass in the core: forgetting of old jobs, begin times."""
    while True:
        await asyncio.sleep(TICK_EVERY_S)
        try:
            await desk.loop.ask(Tick())
        except GpuqError as error:
            log.warning("%s", error.message)
        except Exception:
            log.exception("the tick failed; the next one comes in %g s", TICK_EVERY_S)
        desk.planner.time_passed()


async def _upkeep(desk: Desk, journal: Journal, forget_after_s: float | None) -> None:
    """Every hour: a backup, blobs nobody needs any more, and (only when configured) jobs that ended long ago."""
    while True:
        await asyncio.sleep(UPKEEP_EVERY_S)
        try:
            if forget_after_s is not None:
                await forget_ended_before(desk, time.time() - forget_after_s)
            journal.collect({blob for job in desk.state.jobs.values() for blob in _blobs_of(job)})
            journal.backup("hourly")
        except GpuqError as error:
            log.warning("the hourly upkeep was not finished: %s", error.message)
        except Exception:
            log.exception("the hourly upkeep was not finished")


def _blobs_of(job: Job) -> list[BlobId]:
    return [blob for blob in (job.spec.environment, job.spec.script) if blob is not None]


async def _mend(journal: Journal) -> None:
    """While the disk is nearly full or failing: look whether writing works and there is room for the reserve."""
    while True:
        await asyncio.sleep(MEND_EVERY_S)
        if (journal.low_space or journal.problem) and journal.probe():
            log.warning("the journal can be written again: new work is taken")


# --- starting in the background -------------------------------------------------------------------------


def start_in_background(*, allow_rollback: bool = False) -> None:
    """Start a daemon of its own session and return when it answers; raises GpuqError with its last words.

    Another daemon may own the journal: one started in the same moment, which answers shortly, or one that is about to
    end, after which this one is started again.
    """
    paths = find_paths()
    Path(paths.home).mkdir(mode=0o700, parents=True, exist_ok=True)
    words = Path(paths.home) / "daemon.out"
    hint = f"Its log: {Path(paths.home) / 'daemon.log'}"
    deadline = time.monotonic() + START_WITHIN_S
    while True:
        process = _spawn(paths, words, allow_rollback)
        while process.poll() is None and time.monotonic() < deadline:
            server = _server_pid(paths.socket)
            if server is not None:
                if server != process.pid:  # ours lost the race: it must not take over later, when that one is stopped
                    process.kill()
                    process.wait()
                return
            time.sleep(POLL_S)
        if process.returncode is None:
            text = f"The daemon (pid {process.pid}) did not answer within {START_WITHIN_S:.0f} s."
            raise DaemonUnreachable(text, hint)
        said = _last_words(words)
        if said and OWNED not in said:
            raise DaemonUnreachable(f"The daemon ended while starting: {said}", hint)
        if _answers_soon(paths.socket):
            return
        if time.monotonic() > deadline:
            raise DaemonUnreachable(f"The daemon ended while starting: {said or 'it said nothing'}", hint)


def _spawn(paths: Paths, words: Path, allow_rollback: bool) -> subprocess.Popen[bytes]:
    with open(words, "wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "gpuq.daemon", *(["--allow-rollback"] if allow_rollback else [])],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,
            env=_daemon_environment(paths),
        )


def _daemon_environment(paths: Paths) -> dict[str, str]:
    """The starter's environment with the places made explicit; jobs see none of it."""
    environment = dict(os.environ)
    environment |= {"GPUQ_HOME": paths.home, "GPUQ_SOCKET": paths.socket}
    if "GPUQ_CONFIG" in os.environ or os.path.exists(paths.config_file):
        environment["GPUQ_CONFIG"] = paths.config_file
    return environment


def _server_pid(path: str) -> int | None:
    """The process that listens at the socket; None when nobody does."""
    import socket
    import struct

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            with connect_address(path) as address:
                connection.connect(address)
        except OSError:
            return None
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])


def _answers_soon(path: str) -> bool:
    """Whether the daemon that owns the journal answers within a moment."""
    deadline = time.monotonic() + SOON_S
    while time.monotonic() < deadline:
        if _server_pid(path) is not None:
            return True
        time.sleep(POLL_S)
    return False


def _last_words(path: Path) -> str:
    """The last line that a daemon wrote before it ended; empty when there is none."""
    try:
        lines = path.read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else ""
