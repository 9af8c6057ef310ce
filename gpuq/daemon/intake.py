"""Bodies of requests as core requests: checks shapes, decodes base64, names what is wrong. Imports core.

One thing to know: environments and scripts become blobs named by their SHA-256, so ten thousand jobs submitted from
one shell keep one copy, and none of it is held in memory.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Any

import msgspec

from gpuq.core.model import BlobId, JobId, JobSpec, User
from gpuq.core.requests import Submit
from gpuq.core.states import JobState
from gpuq.errors import UsageError

MAX_ENVIRONMENT_BYTES = 8 * 2**20
MAX_SCRIPT_BYTES = 8 * 2**20

Blobs = dict[BlobId, bytes]


def blob_id(data: bytes) -> BlobId:
    """The name of a blob."""
    return BlobId(hashlib.sha256(data).hexdigest())


def decode_base64(text: object, what: str, limit: int) -> bytes:
    """Bytes of a base64 field; raises UsageError naming the field."""
    if not isinstance(text, str):
        raise UsageError(f"The {what} of a submit must be base64 text.")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UsageError(f"The {what} of a submit is not base64.") from None
    if len(data) > limit:
        raise UsageError(f"The {what} has {len(data)} bytes; at most {limit} are accepted.")
    return data


class Parcel:
    """Collects the blobs of one or more submits; shared ones are decoded once."""

    def __init__(self, shared: dict[str, Any] | None = None) -> None:
        self.blobs: Blobs = {}
        self._shared = shared or {}
        self._named: dict[str, BlobId] = {}

    def add(self, field: object, what: str, limit: int) -> BlobId:
        """The id of a field's content: base64 text, or {"blob": name} of the shared ones."""
        if isinstance(field, dict):
            name = str(field.get("blob"))
            if name not in self._named:
                if name not in self._shared:
                    raise UsageError(f"The submit names blob '{name}', which the request does not bring.")
                self._named[name] = self.add(self._shared[name], what, limit)
            return self._named[name]
        data = decode_base64(field, what, limit)
        id_ = blob_id(data)
        self.blobs[id_] = data
        return id_


def submit_of(body: dict[str, Any], by: User, parcel: Parcel) -> Submit:
    """The request a submit object asks for; dependencies on archived jobs are filled in by the caller."""
    plain = body.get("spec")
    if not isinstance(plain, dict):
        raise UsageError("A submit needs a 'spec' object.")
    if body.get("environment") is None:
        raise UsageError("A submit needs an 'environment'.")
    spec = dict(plain)
    spec["environment"] = parcel.add(body["environment"], "environment", MAX_ENVIRONMENT_BYTES)
    script = body.get("script")
    spec["script"] = parcel.add(script, "script", MAX_SCRIPT_BYTES) if script is not None else None
    try:
        return Submit(
            spec=msgspec.convert(spec, JobSpec),
            by=by,
            key=msgspec.convert(body.get("key", ""), str),
            tasks=msgspec.convert(body.get("tasks", ()), tuple[int, ...]),
            held=bool(body.get("held", False)),
            gpus_given=bool(body.get("gpus_given", True)),
        )
    except msgspec.ValidationError as error:
        raise UsageError(f"The submit does not fit: {error}.") from None


def with_archived_parents(request: Submit, ended: dict[JobId, JobState]) -> Submit:
    """The same submit, with the final states of parents that only the archive knows."""
    return msgspec.structs.replace(request, ended_elsewhere=tuple(sorted(ended.items())))


def ids_of(body: dict[str, Any]) -> tuple[JobId, ...]:
    """The `ids` of a body; at least one."""
    ids = body.get("ids")
    if not isinstance(ids, list) or not ids or not all(isinstance(each, str) for each in ids):
        raise UsageError("The request needs 'ids': a list of job ids.")
    return tuple(JobId(each) for each in ids)
