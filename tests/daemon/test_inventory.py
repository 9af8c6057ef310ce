"""Agents' words as records: foreign use, what is unknown and stays so, and odd frames that must do no harm."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from msgspec.structs import replace

from gpuq.core.events import GpusChanged, NodeChanged
from gpuq.core.model import Containment, Gpu, GpuUuid, Health, NodeName, Reach, Stamp, Used
from gpuq.daemon import inventory
from gpuq.journal.codec import event_rows
from tests.fakes import FakeAgent, Frame, gpu_record, sample

MILL = NodeName("mill")


def one_gpu(**fields: Any) -> Gpu:
    """A GPU as an inventory record describes it."""
    found = inventory.gpu_of(gpu_record(0, **fields), simulated=False)
    assert found is not None
    return found


def process(pid: int = 8123, **fields: Any) -> Frame:
    """A process as a sample lists it: somebody else's, 11 GiB."""
    return {"pid": pid, "user": "tom", "name": "python", "memory_mib": 11264, "kind": "compute", "attempt": None,
            **fields}  # fmt: skip


def seen(found: Frame, ignore: tuple[str, ...] = ()) -> Gpu:
    """The GPU after a sample."""
    return inventory.with_samples((one_gpu(),), [found], ignore)[0]


# --- inventory ------------------------------------------------------------------------------------------


def test_an_inventory_record() -> None:
    """A record of the protocol becomes a GPU with its short type; its use is not known yet."""
    gpu = one_gpu(peers={"GPU-1": "nvlink"}, parent="GPU-9")
    assert (gpu.uuid, gpu.index, gpu.memory_mib, gpu.numa_node) == ("GPU-0", 0, 40960, 0)
    assert gpu.type == "A100-40G"
    assert gpu.power_limit_w == 400.0
    assert (gpu.peers, gpu.parent) == ((("GPU-1", "nvlink"),), "GPU-9")
    assert gpu.seen is False


@pytest.mark.parametrize("field", ["memory_mib", "pci_bus_id", "numa_node", "power_limit_w", "parent", "reason"])
def test_unknown_stays_unknown(field: str) -> None:
    """What the driver does not say is None, never 0 or an empty text."""
    record = gpu_record(0)
    del record[field]
    for found in (inventory.gpu_of(record, False), inventory.gpu_of(gpu_record(0, **{field: None}), False)):
        assert found is not None
        assert getattr(found, field) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("memory_mib", "lots"), ("memory_mib", math.nan), ("memory_mib", math.inf), ("memory_mib", 10**30),
        ("memory_mib", True), ("power_limit_w", "[Not Supported]"), ("power_limit_w", [400]), ("numa_node", {}),
        ("pci_bus_id", 7), ("reason", ["x"]), ("parent", 0),
    ],
)  # fmt: skip
def test_odd_values_are_unknown(field: str, value: object) -> None:
    """A value of the wrong kind counts as not known."""
    assert getattr(one_gpu(**{field: value}), field) is None


def test_a_gpu_without_a_uuid_is_left_out() -> None:
    """A GPU that cannot be named cannot be given out; the others are still there."""
    frame = {"gpus": [gpu_record(0, uuid=None), "odd", gpu_record(1), gpu_record(2, uuid=["x"])]}
    assert [gpu.uuid for gpu in inventory.gpus_of(frame, False)] == ["GPU-1"]


@pytest.mark.parametrize(
    ("word", "health"),
    [("lost", "lost"), ("suspect", "suspect"), ("fine", "suspect"), (None, "ok"), ([], "ok")],
)
def test_health(word: object, health: str) -> None:
    """A word for health that is not known here counts as doubtful, so that the GPU is not given out."""
    assert one_gpu(health=word).health is Health(health)


def test_simulated_gpus_are_seen_at_once() -> None:
    """Nobody outside gpuq can use a simulated GPU, so it is free before its first sample."""
    found = inventory.gpu_of(gpu_record(0), simulated=True)
    assert found is not None
    assert found.seen is True


def test_a_ready_frame() -> None:
    """The frame of the protocol becomes a node that answers; cpus and memory by hand win over what it says."""
    node = inventory.node_of(MILL, FakeAgent(gpus=2, vendor="nvidia").ready(), None, None)
    assert (node.name, node.hostname, node.reach) == ("mill", "mill", Reach.UP)
    assert (node.cpus, node.memory_mib, node.containment) == (8, 65536, Containment.PROCESS_TREE)
    assert (node.driver, node.driver_error, len(node.gpus)) == ("nvidia 1", None, 2)
    by_hand = inventory.node_of(MILL, FakeAgent().ready(), 4, 1024)
    assert (by_hand.cpus, by_hand.memory_mib) == (4, 1024)


@pytest.mark.parametrize(
    ("driver", "shown", "error"),
    [
        ({"vendor": "nvidia", "version": "580.65"}, "nvidia 580.65", None),
        ({"vendor": "nvidia", "version": None}, "nvidia", None),
        ({"vendor": "none", "version": None, "error": "no driver"}, None, "no driver"),
        ({"vendor": "simulated", "version": "1"}, "simulated", None),
        (None, None, None),
        ("odd", None, None),
    ],
)
def test_drivers(driver: object, shown: str | None, error: str | None) -> None:
    """The driver as people read it, and its error."""
    assert inventory.driver_of({"driver": driver}) == (shown, error)


def test_an_empty_ready_frame_is_a_small_node() -> None:
    """A frame that says nothing gives a node with one CPU, no memory to promise and the weakest containment."""
    node = inventory.node_of(MILL, {}, None, None)
    assert (node.cpus, node.memory_mib, node.gpus, node.hostname) == (1, 0, (), "mill")
    assert node.containment is Containment.PROCESS_TREE


def test_what_was_known_about_use_survives_a_new_inventory() -> None:
    """An inventory says nothing about who uses a GPU: what the samples said before is kept."""
    known = seen(sample(0, [process()], foreign=True))
    again = inventory.with_use_of([known], [one_gpu(health="lost"), replace(one_gpu(), uuid=GpuUuid("GPU-new"))])
    assert (again[0].seen, again[0].foreign, again[0].health) == (True, known.foreign, Health.LOST)
    assert (again[1].seen, again[1].foreign) == (False, ())


# --- foreign use ----------------------------------------------------------------------------------------


def test_nobody_there() -> None:
    """A sample without processes makes the GPU known and free."""
    found = seen(sample(0))
    assert (found.seen, found.foreign) == (True, ())


def test_a_stranger_is_named() -> None:
    """A foreign computation makes the GPU foreign, with pid, user, name and memory."""
    found = seen(sample(0, [process()], foreign=True))
    assert found.seen is True
    who = found.foreign[0]
    assert (who.pid, who.user, who.name, who.memory_mib) == (8123, "tom", "python", 11264)


def test_our_own_processes_are_not_strangers() -> None:
    """A process of an attempt never counts, not even beside a stranger."""
    found = seen(sample(0, [process(1, attempt="a1"), process(2)], foreign=True))
    assert [who.pid for who in found.foreign] == [2]


def test_small_strangers_do_not_count() -> None:
    """The agent says whether what is there is above the threshold; when it says no, the GPU is free."""
    found = seen(sample(0, [process(memory_mib=4)], foreign=False))
    assert (found.seen, found.foreign) == (True, ())


def test_use_that_cannot_be_listed_is_unknown() -> None:
    """When the driver cannot list processes the GPU is not free but unknown, whatever was known before."""
    busy = seen(sample(0, [process()], foreign=True))
    found = inventory.with_samples((busy,), [sample(0, foreign=None, processes=None) | {"processes": None}], ())[0]
    assert (found.seen, found.foreign) == (False, ())


def test_a_stranger_of_unknown_size_counts() -> None:
    """When nobody knows how much a stranger uses, the GPU is foreign; known small and graphics ones do not matter."""
    found = seen(sample(0, [process(1, memory_mib=None), process(2, memory_mib=4),
                            process(3, memory_mib=None, kind="graphics")], foreign=None))  # fmt: skip
    assert [who.pid for who in found.foreign] == [1]
    assert found.seen is True


def test_ignored_programs() -> None:
    """Programs that the settings name never make a GPU foreign."""
    found = seen(sample(0, [process(name="Xorg"), process(9, name="python")], foreign=True), ("Xorg",))
    assert [who.pid for who in found.foreign] == [9]
    assert seen(sample(0, [process(name="Xorg")], foreign=True), ("Xorg",)).foreign == ()


def test_unknown_fields_of_a_stranger() -> None:
    """Its user, name or memory may be hidden: they stay None."""
    who = seen(sample(0, [process(user=None, name=None, memory_mib=None)], foreign=True)).foreign[0]
    assert (who.user, who.name, who.memory_mib) == (None, None, None)


def test_samples_of_other_gpus_change_nothing() -> None:
    """A sample is taken for its own GPU only."""
    first, second = one_gpu(), replace(one_gpu(), uuid=GpuUuid("GPU-1"), seen=True)
    found = inventory.with_samples((first, second), [sample(0, [process()], foreign=True), sample(5)], ())
    assert found[1] == second
    assert found[0].foreign


def test_memory_that_moves_is_no_news() -> None:
    """A stranger that allocates more makes no new event; another pid, health or knowledge does."""
    before = seen(sample(0, [process(memory_mib=5000)], foreign=True))
    assert inventory.same_use([before], [seen(sample(0, [process(memory_mib=9000)], foreign=True))])
    assert not inventory.same_use([before], [seen(sample(0, [process(77)], foreign=True))])
    assert not inventory.same_use([before], [seen(sample(0))])
    assert not inventory.same_use([before], [replace(before, health=Health.LOST)])
    assert not inventory.same_use([before], [])


# --- attempts -------------------------------------------------------------------------------------------


def test_an_exit_record() -> None:
    """The record of an ended attempt, field by field."""
    frame = FakeAgent().exit_record("a1", exit_code=3, job="7", gpus=["GPU-0"])
    report = inventory.report_of(MILL, frame)
    assert (report.node, report.attempt, report.phase, report.status) == ("mill", "a1", "ended", "exited")
    assert report.exit is not None
    assert (report.exit.code, report.exit.signal, report.exit.run_s) == (3, None, 60.0)
    assert (report.job, report.gpus) == ("7", ("GPU-0",))


def test_an_unknown_exit_code_is_not_0() -> None:
    """Without a code in the record the code is unknown."""
    for odd in (None, "0", math.nan, ["0"], False):
        report = inventory.report_of(MILL, FakeAgent().exit_record("a1", exit_code=odd))
        assert report.exit is not None
        assert report.exit.code is None
    assert inventory.report_of(MILL, {"type": "attempt", "attempt": "a1", "phase": "lost"}).exit is not None
    assert inventory.report_of(MILL, {"type": "attempt", "attempt": "a1", "phase": "running"}).exit is None


def test_what_an_attempt_used() -> None:
    """Measures come as told; what is missing or out of range is unknown, and nothing told is nothing known."""
    told = {"utilization": 0.5, "power_w": 210, "memory_mib": 3000, "samples": 7}
    for fields, found in (
        (told, Used(utilization=0.5, power_w=210.0, memory_mib=3000.0, samples=7)),
        ({"utilization": 50, "power_w": -1, "memory_mib": None, "samples": 7}, Used(samples=7)),
        (None, None),
        (["x"], None),
    ):
        report = inventory.report_of(MILL, FakeAgent().exit_record("a1", exit_code=0, used=fields))
        assert report.exit is not None
        assert report.exit.used == found


def test_reasons_belong_to_ends() -> None:
    """A running attempt has no reason of an end, even when its frame carries one."""
    running = {"attempt": "a1", "phase": "running", "reason": "cancel", "started_at": 5.0, "shim_pid": 7}
    report = inventory.report_of(MILL, running)
    assert (report.reason, report.started_at, report.shim_pid) == (None, 5.0, 7)


# --- frames nobody should send --------------------------------------------------------------------------

ODD: tuple[Any, ...] = (
    "text", 7, -1, math.nan, math.inf, 10**30, True, None, [], {}, ["x"], [None], {"a": 1}, "\udcff\udc80", "a\0b",
)  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_odd_frames_do_no_harm(odd: Any) -> None:
    """Whatever stands in a frame's fields, it becomes a record that the journal can store and read back."""
    agent = FakeAgent(vendor="nvidia")
    ready = agent.ready()
    for field in ready:
        node = inventory.node_of(MILL, {**ready, field: odd}, None, None)
        event_rows(1, [(Stamp(wall_s=1.0, steady_s=1.0), NodeChanged(node=node))])
    for field in gpu_record(0):
        gpu = inventory.gpu_of({**gpu_record(0), field: odd}, False)
        gpus: tuple[Gpu, ...] = (gpu,) if gpu else ()
        event_rows(1, [(Stamp(wall_s=1.0, steady_s=1.0), GpusChanged(node=MILL, gpus=gpus))])
    for field in sample(0):
        inventory.with_samples((one_gpu(),), [{**sample(0, [process()], foreign=True), field: odd}], ())
    for field in process():
        gpus = inventory.with_samples((one_gpu(),), [sample(0, [{**process(), field: odd}], foreign=True)], ())
        event_rows(1, [(Stamp(wall_s=1.0, steady_s=1.0), GpusChanged(node=MILL, gpus=gpus))])
    record = agent.exit_record("a1", exit_code=0)
    for field in record:
        report = inventory.report_of(MILL, {**record, field: odd})
        assert json.dumps(report.attempt).isascii()


def test_a_name_that_is_not_utf8_is_shown_with_question_marks() -> None:
    """A foreign process or user whose name has odd bytes is still named, and cannot spoil the journal."""
    who = seen(sample(0, [process(name="tr\udcffain", user="\udc80")], foreign=True)).foreign[0]
    assert (who.name, who.user) == ("tr?ain", "?")
