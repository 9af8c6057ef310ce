"""All nodes: their connections, and the way of an action to the right one. Imports connection and core."""

from __future__ import annotations

import asyncio
from typing import Any

from gpuq.core.events import AnyAction
from gpuq.core.model import GpuUuid
from gpuq.core.state import ClusterState
from gpuq.daemon.connection import READY_WITHIN_S, Connection


class Fleet:
    """All connections, and the way of an action to the right one."""

    def __init__(self, connections: list[Connection]) -> None:
        self.connections = {connection.config.name: connection for connection in connections}
        self._running: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Connect every node."""
        self._running = [asyncio.create_task(each.run()) for each in self.connections.values()]

    async def first_contact(self, state: ClusterState) -> None:
        """Wait, within reason, for nodes that have never been seen: a first submit should know what there is."""
        unseen = [each for name, each in self.connections.items() if name not in state.nodes]
        if unseen:
            ready = [asyncio.create_task(each.introduced.wait()) for each in unseen]
            await asyncio.wait(ready, timeout=READY_WITHIN_S)
            for task in ready:
                task.cancel()

    def carry_out(self, actions: list[AnyAction]) -> None:
        """Hand actions to their nodes."""
        for action in actions:
            connection = self.connections.get(action.node)
            if connection is not None:
                connection.post(action)

    async def stop(self) -> None:
        """End all links; jobs go on."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def latest_sample(self, uuid: GpuUuid) -> dict[str, Any] | None:
        """The newest sample of a GPU, if any."""
        for connection in self.connections.values():
            history = connection.samples.get(uuid)
            if history:
                return history[-1]
        return None

    def utilization_history(self, uuid: GpuUuid) -> list[float | None]:
        """Up to 60 utilisation values of a GPU, newest last."""
        for connection in self.connections.values():
            if uuid in connection.samples:
                return [sample.get("utilization") for sample in connection.samples[uuid]]
        return []
