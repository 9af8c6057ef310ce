"""What does not change while a GPU is plugged in: its identity, its place on the bus, its links to others.

Owns: the facts of a Device as NVML tells them, and the closest link between each two GPUs.
May import: the standard library, `gpus`, `nvml_calls` and `nvml_readings`.
One thing to know: NVML does not say "these GPUs share an NVSwitch". Links whose far end is no GPU lead to
the switch, and two GPUs that both have such links reach each other through it.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Dict, Optional, Set, Tuple

from .gpus import Device, Link
from .nvml_calls import Failure, Nvml, NvmlError
from .nvml_readings import Reading, read_memory

_LINK_OF_ANCESTOR = {
    0: Link.PIX,  # two GPUs on one board
    10: Link.PIX,
    20: Link.PXB,
    30: Link.PHB,
    40: Link.NODE,
    50: Link.SYSTEM,
}
_MAX_NVLINKS = 36
_REMOTE_IS_GPU = 0
_REMOTE_IS_SWITCH = 2


def card_facts(reading: Reading, uuid: str, index: int, sysfs: str) -> Device:
    """A whole GPU; what it does not tell stays None."""
    pci = reading.ask("nvmlDeviceGetPciInfo")
    pci_bus_id = None if pci is None else _text(pci.busId)
    capability = reading.ask("nvmlDeviceGetCudaComputeCapability")
    limit_mw = reading.ask("nvmlDeviceGetPowerManagementLimit")
    _used_mib, total_mib, _includes_reserve = read_memory(reading)
    return Device(
        uuid=uuid,
        index=index,
        vendor="nvidia",
        name=_text(reading.ask("nvmlDeviceGetName") or "NVIDIA GPU"),
        memory_mib=total_mib,
        pci_bus_id=pci_bus_id,
        minor=reading.ask("nvmlDeviceGetMinorNumber"),
        numa_node=_numa_node(reading, pci_bus_id, sysfs),
        compute_capability=None if capability is None else "{}.{}".format(*capability),
        power_limit_w=None if limit_mw is None else limit_mw / 1000.0,
    )


def slice_facts(reading: Reading, uuid: str, card: Device) -> Device:
    """A MIG slice: everything of its card but UUID and memory; the power of a slice is not measured."""
    _used_mib, total_mib, _includes_reserve = read_memory(reading)
    return dataclasses.replace(
        card,
        uuid=uuid,
        parent=card.uuid,
        mig=_mig_profile(reading, total_mib),
        memory_mib=total_mib,
        power_limit_w=None,
        usable=True,
        reason=None,
        peers={},
    )


def _mig_profile(reading: Reading, memory_mib: Optional[int]) -> str:
    """Such as "1g.10gb": the end of the slice's name, or made up from its attributes."""
    named = re.search(r" MIG (\S+)$", _text(reading.ask("nvmlDeviceGetName") or ""))
    if named:
        return named.group(1)
    attributes = reading.ask("nvmlDeviceGetAttributes_v2")
    if attributes is None:
        return "unknown"
    return f"{attributes.gpuInstanceSliceCount}g.{round((memory_mib or 0) / 1024)}gb"


def _numa_node(reading: Reading, pci_bus_id: Optional[str], sysfs: str) -> Optional[int]:
    """The node of the CPUs closest to the GPU; NVML's own answer may be that of the GPU's memory instead."""
    # NVML writes the PCI domain with eight digits, the kernel with four.
    address = (pci_bus_id or "").lower()[-12:]
    try:
        with open(f"{sysfs}/bus/pci/devices/{address}/numa_node") as file:
            node: Optional[int] = int(file.read())
    except (OSError, ValueError):
        node = reading.ask("nvmlDeviceGetNumaNodeId")
    return node if node is not None and node >= 0 else None


def links_between(nvml: Nvml, handles: Dict[str, Any]) -> Dict[str, Dict[str, Link]]:
    """The closest link of each GPU (UUID to handle) to each other; pairs that NVML cannot tell are left out."""
    addresses = {uuid: _pci_address(nvml, handle) for uuid, handle in handles.items()}
    ends = {uuid: _nvlink_ends(nvml, handle) for uuid, handle in handles.items()}
    links: Dict[str, Dict[str, Link]] = {uuid: {} for uuid in handles}
    for one in handles:
        for other in handles:
            if one >= other:
                continue
            direct = addresses[other] in ends[one][0] or addresses[one] in ends[other][0]
            switched = ends[one][1] and ends[other][1]
            link = Link.NVLINK if direct or switched else _pcie_link(nvml, handles[one], handles[other])
            if link is not None:
                links[one][other] = links[other][one] = link
    return links


def _nvlink_ends(nvml: Nvml, handle: Any) -> Tuple[Set[str], bool]:
    """PCI addresses of the GPUs at the far ends of the active NVLinks, and whether any leads to a switch."""
    gpus: Set[str] = set()
    switched = False
    for link in range(_MAX_NVLINKS):
        try:
            if not nvml.call("nvmlDeviceGetNvLinkState", handle, link):
                continue
            kind = nvml.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            remote = nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        except NvmlError as error:
            if error.failure is Failure.DRIVER:
                raise
            break  # past the last link, or a GPU without NVLink
        if kind == _REMOTE_IS_SWITCH:
            switched = True
        elif remote is not None and kind in (None, _REMOTE_IS_GPU):
            gpus.add(_text(remote.busId).lower())
    return gpus, switched


def _pcie_link(nvml: Nvml, one: Any, other: Any) -> Optional[Link]:
    level = _unless_gpu_fails(nvml, "nvmlDeviceGetTopologyCommonAncestor", one, other)
    return _LINK_OF_ANCESTOR.get(level)


def _pci_address(nvml: Nvml, handle: Any) -> Optional[str]:
    pci = _unless_gpu_fails(nvml, "nvmlDeviceGetPciInfo", handle)
    return None if pci is None else _text(pci.busId).lower()


def _unless_gpu_fails(nvml: Nvml, function: str, *arguments: Any) -> Any:
    try:
        return nvml.ask(function, *arguments)
    except NvmlError as error:
        if error.failure is Failure.DRIVER:
            raise
    return None


def _text(value: Any) -> str:
    """NVML's strings are bytes in some versions of the binding."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
