"""From a `start` request to files in the spool. Owns what is written before a shim is asked for.

May import: containment, failpoints, progress, spool. One thing to know: secrets (environment, script) are files of
their own, so that they can be deleted while the rest of the description stays.
"""

from __future__ import annotations

import base64
import binascii
import os
from typing import Any, Dict, List, Optional, Tuple

from . import progress, spool
from .containment import Containment
from .failpoints import reach

REQUIRED = ("argv", "environment", "cwd", "stdout", "umask", "grace_s")


class SpecRefused(ValueError):
    """A spec that can never be started; its text is the sentence for the exit record."""


def write_attempt(directory: str, spec: Dict[str, Any], containment: Containment, gpus: List[Dict[str, Any]]) -> None:
    """Put the attempt's files in place, the spec last; raises OSError or SpecRefused.

    Only the spec's data is made durable here: the shim makes the directories durable before it starts anything.
    """
    environment, script, error = _decoded(spec)
    if error is None and spec.get("visible") == "index":
        environment, error = _with_indices(environment, spec.get("gpus") or [], gpus)
    if script is not None:
        spool.write_file(directory, spool.SCRIPT, script, mode=0o700)
    spool.write_file(directory, spool.ENVIRONMENT, progress.with_variable(environment, directory))
    public = {name: value for name, value in spec.items() if name not in ("environment", "script")}
    public.update(containment=containment.as_json(), error=error)
    if script is not None:
        public["argv"] = [os.path.join(directory, spool.SCRIPT), *spec["argv"][1:]]
    spool.write_json(directory, spool.SPEC, public, durable=True)
    reach("agent.after_spec")


def _decoded(spec: Dict[str, Any]) -> Tuple[bytes, Optional[bytes], Optional[str]]:
    missing = [name for name in REQUIRED if spec.get(name) is None]
    if missing or not spec["argv"]:
        raise SpecRefused(f"The job's description lacks {', '.join(missing) or 'argv'}; submit it again.")
    try:
        script = spec.get("script")
        return (
            base64.b64decode(spec["environment"], validate=True),
            None if script is None else base64.b64decode(script, validate=True),
            None,
        )
    except (binascii.Error, TypeError, ValueError) as error:
        raise SpecRefused(f"The job's description is damaged ({error}); submit it again.") from error


def _with_indices(environment: bytes, wanted: List[str], gpus: List[Dict[str, Any]]) -> Tuple[bytes, Optional[str]]:
    """Set CUDA_VISIBLE_DEVICES to the cards' places in PCI order, which only holds while all cards are there."""
    lost = [gpu["uuid"] for gpu in gpus if gpu.get("health") == "lost"]
    if lost:
        return environment, (
            f"GPU {lost[0]} of this node is lost, so GPU numbers are not certain; submit without --cuda-index."
        )
    cards = [gpu for gpu in gpus if not gpu.get("parent")]
    cards.sort(key=lambda gpu: (str(gpu.get("pci_bus_id") or "").lower(), gpu.get("index") or 0))
    places = {gpu["uuid"]: str(place) for place, gpu in enumerate(cards)}
    unknown = [uuid for uuid in wanted if uuid not in places]
    if unknown:
        return environment, f"GPU {unknown[0]} has no number on this node; submit without --cuda-index."
    kept = [entry for entry in environment.split(b"\0") if entry and not entry.startswith(b"CUDA_VISIBLE_DEVICES=")]
    kept.append(b"CUDA_VISIBLE_DEVICES=" + ",".join(places[uuid] for uuid in wanted).encode("ascii"))
    return b"\0".join(kept), None
