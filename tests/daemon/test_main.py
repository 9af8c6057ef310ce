"""The daemon put together: what it serves and leaves behind, its chores, its settings, and starts that fail."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import gpuq
from gpuq.config import Config, LogsConfig, NodeConfig, Paths, PruneConfig, find_paths
from gpuq.core import decide
from gpuq.core.model import Stamp
from gpuq.core.requests import Submit, Tick
from gpuq.daemon import loop as loop_module
from gpuq.daemon import main as main_module
from gpuq.daemon.ports import SystemClock
from gpuq.errors import DaemonUnreachable, GpuqError, JournalError
from gpuq.journal.problems import JournalBroken, JournalFull
from gpuq.journal.store import Journal
from tests.builders import spec, user
from tests.daemon.stage import Json, Stage, played, submit_body
from tests.fakes import FakeAgent, FakeStore, turns, until


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Garbage collection, umask and logging are left as they were found."""
    threshold, root = gc.get_threshold(), logging.getLogger()
    handlers, level, own_level = root.handlers[:], root.level, logging.getLogger("gpuq").level
    umask = os.umask(0o022)
    yield
    os.umask(umask)
    gc.set_threshold(*threshold)
    gc.unfreeze()
    for each in root.handlers:
        if each not in handlers:
            each.close()
    root.handlers, root.level = handlers, level
    logging.getLogger("gpuq").setLevel(own_level)


def paths_in(directory: Path) -> Paths:
    home = directory / "h"
    return Paths(str(home), str(directory / "gpuq.toml"), False, str(home / "gpuq.sock"))


async def ask(paths: Paths, method: str, path: str, body: Json | None = None) -> Json:
    """One request at the daemon's socket."""
    connector = aiohttp.UnixConnector(path=paths.socket)
    async with aiohttp.ClientSession(connector=connector) as client, client.request(
        method, f"http://gpuq{path}", json=body
    ) as answer:
        found: Json = json.loads(await answer.read())
        return found


@asynccontextmanager
async def serving(
    directory: Path, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch, config: Config | None = None
) -> AsyncIterator[tuple[Paths, asyncio.Task[None]]]:
    """The daemon as `run` wires it, with its real journal and a fake agent."""
    paths = paths_in(directory)
    Path(paths.home).mkdir(mode=0o700, exist_ok=True)
    os.umask(0o077)
    monkeypatch.setattr(main_module, "_open_local", agent.open)
    journal = Journal.open(Path(paths.home))
    lives = len(agent.links)
    task = asyncio.create_task(main_module._serve(config or Config(), paths, Path(paths.home), journal))
    try:
        await until(lambda: task.done() or (len(agent.links) > lives and agent.link.sent), "the daemon serves")
        yield paths, task
        if not task.done():
            await ask(paths, "POST", "/v1/shutdown", {})
        await asyncio.wait_for(task, 10.0)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        journal.close()


# --- serving --------------------------------------------------------------------------------------------


@played
async def test_a_daemon_from_start_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves its socket, runs a job, and at its end leaves a snapshot, no socket, and the job running."""
    agent = FakeAgent()
    async with serving(tmp_path, agent, monkeypatch) as (paths, _):
        status = await ask(paths, "GET", "/v1/status")
        assert (status["version"], status["pid"]) == (gpuq.__version__, os.getpid())
        assert (status["socket"], status["home"]) == (paths.socket, paths.home)
        assert Path(paths.socket).stat().st_mode & 0o777 == 0o600
        assert Path(paths.home).stat().st_mode & 0o777 == 0o700
        made = await ask(paths, "POST", "/v1/jobs", submit_body())
        await until(lambda: agent.sent("start"), "the job is started")
        await ask(paths, "GET", f"/v1/wait?ids={made['id']}&timeout_s=0")
    assert not Path(paths.socket).exists()
    assert agent.link.is_closed
    assert agent.sent("stop") == []
    journal = Journal.open(Path(paths.home))
    state, entries = journal.load()
    journal.close()
    assert state is not None
    assert list(entries) == [], "the snapshot covers everything"


@played
async def test_a_second_life_knows_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart jobs, ids and the steady clock go on, and the running job is found again, not started again."""
    agent = FakeAgent()
    async with serving(tmp_path, agent, monkeypatch) as (paths, _):
        await ask(paths, "POST", "/v1/jobs", submit_body())
        await until(lambda: agent.attempts, "the job runs")
        before = (await ask(paths, "GET", "/v1/jobs/1"))["job"]
    async with serving(tmp_path, agent, monkeypatch) as (paths, _):
        await until(lambda: len(agent.links) == 2, "the second life speaks with the agent")
        job = (await ask(paths, "GET", "/v1/jobs/1"))["job"]
        assert (job["state"], job["attempt"]) == ("RUNNING", before["attempt"])
        assert job["elapsed_s"] >= (before["elapsed_s"] or 0)
        assert (await ask(paths, "POST", "/v1/jobs", submit_body({"gpus": 0}, begin_at=9e9)))["id"] == "2"
        events = (await ask(paths, "GET", "/v1/events"))["events"]
        moments = [event["at"] for event in events]
        assert moments == sorted(moments)
    assert len(agent.sent("start")) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@played
async def test_signals_stop_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """SIGTERM and SIGINT are a clean stop, also while a client waits."""
    agent = FakeAgent()
    async with serving(tmp_path, agent, monkeypatch) as (paths, task):
        await ask(paths, "POST", "/v1/jobs", submit_body({"gpus": 0}, begin_at=9e9))
        waiting = asyncio.create_task(ask(paths, "GET", "/v1/wait?ids=1&timeout_s=30"))
        await turns()
        os.kill(os.getpid(), number)
        await asyncio.wait_for(task, 10.0)
        await asyncio.gather(waiting, return_exceptions=True)
    assert not Path(paths.socket).exists()


@played
async def test_a_writer_that_dies_ends_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the journal cannot be read again the daemon ends with that error instead of promising on."""
    agent = FakeAgent()
    paths = paths_in(tmp_path)

    def broken(*_: Any, **__: Any) -> Any:
        raise JournalBroken("The journal cannot be read.")

    async def play() -> None:
        async with serving(tmp_path, agent, monkeypatch) as (_, task):
            await ask(paths, "POST", "/v1/jobs", submit_body({"gpus": 0}, begin_at=9e9))
            monkeypatch.setattr(Journal, "append", broken)
            monkeypatch.setattr(Journal, "load", broken)
            answer = await ask(paths, "POST", "/v1/jobs", submit_body({"gpus": 0}))
            assert answer["error"]["message"].endswith("The journal cannot be read.")
            await asyncio.wait_for(asyncio.wait({task}), 10.0)

    with pytest.raises(JournalBroken, match="cannot be read"):
        await play()
    assert not Path(paths.socket).exists()


@played
async def test_what_the_journal_knew_of_a_node_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart nothing starts on a node until its agent has said hello."""
    agent = FakeAgent()
    async with serving(tmp_path, agent, monkeypatch) as (paths, _):
        await ask(paths, "POST", "/v1/jobs", submit_body({"gpus": 0}, begin_at=9e9))
    agent.is_mute = True
    async with serving(tmp_path, agent, monkeypatch) as (paths, _):
        made = await ask(paths, "POST", "/v1/jobs", submit_body())
        (node,) = (await ask(paths, "GET", "/v1/nodes"))["nodes"]
        assert node["reach"] == "suspect"
        assert (await ask(paths, "GET", f"/v1/jobs/{made['id']}"))["job"]["state"] == "PENDING"
        agent.link.say(agent.ready())
        await until(lambda: agent.sent("start"), "the job is started")


# --- settings -------------------------------------------------------------------------------------------


def test_simulated_gpus_of_the_settings() -> None:
    """`gpus` of a node makes simulated ones, none means the real ones, and a bad model names file and key."""
    assert main_module._simulated_gpus(NodeConfig("local")) is None
    assert main_module._simulated_gpus(NodeConfig("local", simulate=True)) == []
    found = main_module._simulated_gpus(NodeConfig("local", gpus=("A100:2", "V100")))
    assert found is not None
    assert len(found) == 3
    assert all(each["memory_mib"] > 0 for each in found)
    with pytest.raises(GpuqError, match=r"gpuq.toml, \[node.local\] gpus: "):
        main_module._simulated_gpus(NodeConfig("local", gpus=("Z9000:2",)))


def test_the_agents_settings(tmp_path: Path) -> None:
    """What gpuq.toml says of the local node and of GPUs reaches the agent; other nodes' sections do not."""
    config = Config(nodes=(NodeConfig("mill", cpus=99), NodeConfig("local", cpus=3, memory_mib=512)))
    found = main_module._local_agent(config, tmp_path)
    assert (found.name, found.cpus, found.memory_mib) == ("local", 3, 512)
    assert found.spool == str(tmp_path / "spool")
    assert found.foreign_memory_mib == config.gpus.foreign_memory_mib
    assert found.pynvml_path is not None
    assert (Path(found.pynvml_path) / "pynvml.py").exists() or Path(found.pynvml_path, "__init__.py").exists()


def test_where_logs_are_kept(tmp_path: Path) -> None:
    """Below the home unless the settings name a directory; a limit of 0 means none."""
    store: Any = FakeStore()
    loop = loop_module.Loop(store, SystemClock())
    paths = paths_in(tmp_path)
    desk = main_module._desk(Config(), paths, tmp_path / "h", store, loop)
    assert desk.places.logs == tmp_path / "h" / "logs"
    assert desk.places.logs.stat().st_mode & 0o077 == 0
    elsewhere = Config(logs=LogsConfig(limit_bytes=0, directory=str(tmp_path / "elsewhere")))
    desk = main_module._desk(elsewhere, paths, tmp_path / "h", store, loop)
    assert (desk.places.logs, desk.places.log_limit_bytes) == (tmp_path / "elsewhere", None)


# --- chores ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def doing(chore: Any) -> AsyncIterator[None]:
    """A chore that runs meanwhile."""
    task = asyncio.create_task(chore)
    try:
        yield
        assert not task.done(), "the chore has ended"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@played
async def test_ticks_go_on_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick that is refused, or hits a fault, is not the last one."""
    monkeypatch.setattr(main_module, "TICK_EVERY_S", 0.002)
    real = decide.step
    faults: list[Exception] = [ZeroDivisionError("a fault"), JournalFull("The disk is full."), GpuqError("no")]
    ticks: list[int] = []

    def step(state: Any, request: Any, now: Any) -> Any:
        if isinstance(request, Tick):
            ticks.append(1)
            if faults:
                raise faults.pop()
        return real(state, request, now)

    monkeypatch.setattr(loop_module, "step", step)
    monkeypatch.setattr(loop_module, "RETRY_S", 0.002)
    async with Stage(tmp_path) as stage, doing(main_module._tick(stage.desk)):
        await until(lambda: not faults, "every fault has been met")
        count = len(ticks)
        await until(lambda: len(ticks) > count + 2, "ticks go on")


@played
async def test_hourly_upkeep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps a backup and the blobs that jobs still need, forgets by age only when told, and outlives a fault."""
    monkeypatch.setattr(main_module, "UPKEEP_EVERY_S", 0.002)
    async with Stage(tmp_path) as stage:
        id_ = await stage.submit({"gpus": 0}, begin_at=9e9)
        kept: list[set[str]] = []
        reasons: list[str] = []
        faults: list[Exception] = [ZeroDivisionError("a fault"), JournalFull("The disk is full.")]

        def backup(reason: str) -> None:
            reasons.append(reason)
            if faults:
                raise faults.pop()

        stage.store.collect = lambda keep: kept.append(set(keep))
        stage.store.backup = backup
        forgotten: list[float] = []

        async def forget(desk: Any, wall_s: float) -> None:
            forgotten.append(wall_s)

        monkeypatch.setattr(main_module, "forget_ended_before", forget)
        async with doing(main_module._upkeep(stage.desk, stage.store, None)):
            await until(lambda: len(reasons) >= 4, "the upkeep goes on")
        assert kept[0] == {stage.job(id_).spec.environment}
        assert set(reasons) == {"hourly"}
        assert forgotten == []
        async with doing(main_module._upkeep(stage.desk, stage.store, 86400.0)):
            await until(lambda: forgotten, "old jobs are forgotten")
        assert PruneConfig().forget_after_s is None, "nothing is forgotten unless somebody asks for it"


@played
async def test_mending_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only while the reserve is spent or the last write failed is writing tried, until it works."""
    monkeypatch.setattr(main_module, "MEND_EVERY_S", 0.002)
    store: Any = FakeStore()
    async with doing(main_module._mend(store)):
        await asyncio.sleep(0.02)
        assert store.probes == 0
        store.low_space = True
        await until(lambda: store.probes >= 2, "the reserve is tried")


# --- a start that fails ---------------------------------------------------------------------------------


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """GPUQ_HOME and GPUQ_CONFIG of this test, with one simulated GPU."""
    for name in list(os.environ):
        if name.startswith("GPUQ_"):
            monkeypatch.delenv(name)
    config = tmp_path / "gpuq.toml"
    config.write_text('[node.local]\ngpus = ["A100:1"]\n')
    monkeypatch.setenv("GPUQ_HOME", str(tmp_path / "h"))
    monkeypatch.setenv("GPUQ_CONFIG", str(config))
    return tmp_path


def test_a_daemon_that_cannot_start_says_why(own_home: Path) -> None:
    """Its last words reach whoever started it, without a traceback; its log is named."""
    (own_home / "h").mkdir(mode=0o700)
    (own_home / "h" / "gpuq.sock").mkdir()  # where the socket should be
    with pytest.raises(DaemonUnreachable) as failed:
        main_module.start_in_background()
    assert failed.value.exit_code == 3
    assert failed.value.message
    assert "\n" not in failed.value.message


def test_a_second_daemon_is_refused(own_home: Path) -> None:
    """The journal has one owner: another `run` of the same home ends with a sentence and touches nothing."""
    home = own_home / "h"
    journal = Journal.open(home)
    try:
        before = sorted(each.name for each in home.iterdir())
        with pytest.raises(JournalError, match="another gpuq daemon owns"):
            main_module.run()
        assert sorted(each.name for each in home.iterdir()) == before
    finally:
        journal.close()


def test_the_daemons_entry_prints_one_line(own_home: Path) -> None:
    """`python -m gpuq.daemon` with bad settings: exit code, one line on stderr, no traceback."""
    (own_home / "gpuq.toml").write_text("[nonsense]\n")
    done = subprocess.run([sys.executable, "-m", "gpuq.daemon"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "nonsense" in done.stderr


def test_last_words(tmp_path: Path) -> None:
    """The last line counts; there is none of a daemon that said nothing."""
    words = tmp_path / "daemon.out"
    assert main_module._last_words(words) == ""
    words.write_text("")
    assert main_module._last_words(words) == ""
    words.write_bytes(b"first\nthe disk is full\xff\n\n")
    assert main_module._last_words(words).startswith("the disk is full")


def test_the_daemon_gets_explicit_places(own_home: Path) -> None:
    """A daemon started in the background finds the same home, socket and settings from any directory."""
    paths = find_paths()
    found = main_module._daemon_environment(paths)
    assert found["GPUQ_HOME"] == str(own_home / "h")
    assert found["GPUQ_SOCKET"] == paths.socket
    assert found["GPUQ_CONFIG"] == str(own_home / "gpuq.toml")


# --- clocks ---------------------------------------------------------------------------------------------


@played
async def test_the_steady_clock_goes_on_from_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon's first moment comes after the last one in its journal, even when the wall clock was set back."""
    home = tmp_path / "h"
    home.mkdir(mode=0o700)
    journal = Journal.open(home)
    loop = loop_module.Loop(journal, SystemClock())
    loop.load()
    far = Stamp(wall_s=5e9, steady_s=123_456.0)  # long after now by the wall clock
    outcome = decide.step(loop.state, Submit(spec=spec(gpus=0, begin_at=9e9), by=user()), far)
    journal.append([(far, event) for event in outcome.events])
    journal.close()
    async with serving(tmp_path, FakeAgent(), monkeypatch) as (paths, _):
        await ask(paths, "POST", "/v1/jobs", submit_body({"gpus": 0}, begin_at=9e9))
    journal = Journal.open(home)
    moments = [entry.stamp.steady_s for entry in journal.events()]
    journal.close()
    assert moments[0] == 123_456.0
    assert moments == sorted(moments)
    assert moments[-1] < 123_456.0 + 60
