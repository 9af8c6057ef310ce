"""Which of several free GPUs to take: those that talk fastest to each other. Imports model.

One thing to know: a single GPU is taken where it costs the others least, so that the pairs and islands that a later
gang needs stay whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuq.core.model import Gpu, GpuUuid

LINK_RANK: Final = {"nvlink": 6, "pix": 4, "pxb": 3, "phb": 2, "node": 1, "sys": 0}


def choose(gpus: Sequence[Gpu], count: int) -> tuple[int, ...]:
    """Positions of the `count` best connected of `gpus`, ascending; all of them when there are no more than that."""
    size = len(gpus)
    if count >= size:
        return tuple(range(size))
    if count <= 0:
        return ()
    plain = sorted(range(size), key=lambda position: (gpus[position].memory_mib or 0, gpus[position].index))
    if not any(gpu.peers for gpu in gpus) and len({gpu.numa_node for gpu in gpus}) == 1:
        return tuple(sorted(plain[:count]))
    links = _link_matrix(gpus)
    chosen = max(
        (_grown(links, plain, seed, count) for seed in plain),
        key=lambda group: (_inner(links, group), -_outer(links, group), [-plain.index(each) for each in group]),
    )
    return tuple(sorted(chosen))


def _link_matrix(gpus: Sequence[Gpu]) -> list[list[int]]:
    ranks = [{uuid: LINK_RANK.get(kind, 0) for uuid, kind in gpu.peers} for gpu in gpus]
    return [
        [0 if one is other else _rank(ranks[row], one, other) for other in gpus] for row, one in enumerate(gpus)
    ]


def _rank(known: dict[GpuUuid, int], one: Gpu, other: Gpu) -> int:
    near = one.numa_node is not None and one.numa_node == other.numa_node
    return known.get(other.uuid, LINK_RANK["node"] if near else LINK_RANK["sys"])


def _grown(links: list[list[int]], order: list[int], seed: int, count: int) -> list[int]:
    """`seed` and, one after the other, the GPU with the best links to those taken so far."""
    taken = [seed]
    gain = list(links[seed])
    while len(taken) < count:
        best = max((position for position in order if position not in taken), key=gain.__getitem__)
        taken.append(best)
        gain = [one + other for one, other in zip(gain, links[best], strict=True)]
    return sorted(taken)


def _inner(links: list[list[int]], group: list[int]) -> int:
    return sum(links[one][other] for one in group for other in group)


def _outer(links: list[list[int]], group: list[int]) -> int:
    return sum(links[one][other] for one in group for other in range(len(links)) if other not in group)
