"""Fragmentation of GPUs: values that can be computed by hand, and what each rule of placement prefers."""

from __future__ import annotations

import pytest

pytest.importorskip("numpy")

from bench.fragmentation import RULES, BestFit, LeastFragmentation, Nodes, Pod, Random, allocated_percent

HALF, WHOLE, PAIR = Pod(1000, 1, 1, 500), Pod(1000, 1, 1, 1000), Pod(1000, 1, 2, 1000)


def nodes(*gpus: int, cpu_milli: int = 8000) -> Nodes:
    """Nodes of that many GPUs each."""
    return Nodes([cpu_milli] * len(gpus), [1000] * len(gpus), list(gpus))


def test_fragmentation_is_what_a_class_cannot_use_weighted_by_how_common_it_is() -> None:
    """A node with 1 and 0.4 GPUs free: 0.4 is lost to whole pods, 0.4 to halves, and all 1.4 to pairs."""
    cluster = nodes(2)
    cluster.free[0] = (1000, 400)
    rule = LeastFragmentation(cluster, [WHOLE, WHOLE, HALF, PAIR], 0)
    assert rule.fragmentation(cluster.cpu, cluster.mem, cluster.free)[0] == pytest.approx((400 * 3 + 1400) / 4)


def test_free_gpus_without_cpus_are_lost_to_all() -> None:
    """Nobody can use the GPUs of a node whose CPUs are taken."""
    cluster = nodes(2, cpu_milli=500)
    rule = LeastFragmentation(cluster, [HALF], 0)
    assert rule.fragmentation(cluster.cpu, cluster.mem, cluster.free)[0] == pytest.approx(2000)


def test_fgd_completes_a_broken_gpu() -> None:
    """A half goes beside the half that is there, and no whole GPU is broken."""
    cluster = nodes(2, 2)
    cluster.take(HALF, 1, [1])
    rule = LeastFragmentation(cluster, [HALF, WHOLE, PAIR], 0)
    assert rule.place(HALF) == (1, [1])


def test_fgd_sees_its_own_placements() -> None:
    """What is placed changes where the next goes, though earlier growths are remembered."""
    cluster = nodes(1, 1)
    rule = LeastFragmentation(cluster, [HALF, WHOLE], 0)
    places = []
    for _ in range(4):
        found = rule.place(HALF)
        assert found is not None
        cluster.take(HALF, *found)
        rule.settle(found[0])
        places.append(found[0])
    assert places[0] == places[1] != places[2] == places[3]
    assert rule.place(HALF) is None


def test_best_fit_takes_the_fullest_node_and_gpu() -> None:
    """Of two nodes the one with less left, and there the GPU with less left."""
    cluster = nodes(2, 2)
    cluster.take(HALF, 1, [1])
    assert BestFit(cluster, [], 0).place(HALF) == (1, [1])
    assert BestFit(cluster, [], 0).place(PAIR) == (0, [0, 1])


def test_random_takes_only_places_with_room() -> None:
    """The one node with two free GPUs, whatever the seed."""
    for seed in range(5):
        assert Random(nodes(1, 2, 1), [], seed).place(PAIR) in ((1, [0, 1]), (1, [1, 0]))


@pytest.mark.parametrize("rule", sorted(RULES))
def test_no_gpu_is_allocated_twice(rule: str) -> None:
    """Pods to 130% of the GPUs fill the cluster, and never beyond any of its GPUs (seed 0)."""
    cluster = nodes(4, 2, 1, cpu_milli=20000)
    share = allocated_percent(cluster, [HALF, WHOLE, PAIR], rule, 0)
    assert 70.0 <= share <= 100.0
    assert int(cluster.free.min()) >= 0
