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
from gpuq.journal.failpoints import mutant

MAX_ENVIRONMENT_BYTES = 8 * 2**20
MAX_SCRIPT_BYTES = 8 * 2**20

Blobs = dict[BlobId, bytes]
Json = dict[str, Any]


class _Beside(msgspec.Struct, frozen=True):
    """The plain fields of a submit object, beside `spec`, `environment` and `script`."""

    key: str = ""
    tasks: tuple[int, ...] = ()
    held: bool = False
    gpus_given: bool = True


class PruneFilters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which ended jobs a prune is about; what is left out does not restrict."""

    ended_before: float | None = None
    ids: tuple[str, ...] | None = None
    states: tuple[str, ...] | None = None
    user: str | None = None


def misfit(error: msgspec.ValidationError, what: str) -> UsageError:
    """The sentence for a value of the wrong shape, naming its field: "spec.resources.gpus"."""
    problem, _, path = str(error).partition(" - at `$")
    field = (what + path.rstrip("`")).lstrip(".")
    where = f"'{field}' does not fit" if field else "The request does not fit"
    return UsageError(f"{where}: {problem[:1].lower()}{problem[1:]}.")


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

    def __init__(self, shared: object = None) -> None:
        if not isinstance(shared, dict | None):
            raise UsageError("The 'blobs' of a batch must be an object: names, and base64 text for each.")
        self.blobs: Blobs = {}
        self._shared: Json = shared or {}
        self._named: dict[str, BlobId] = {}

    def add(self, field: object, what: str, limit: int) -> BlobId:
        """The id of a field's content: base64 text, or {"blob": name} of the shared ones."""
        if isinstance(field, dict):
            name = str(field.get("blob"))
            if name not in self._named:
                if name not in self._shared:
                    raise UsageError(f"The submit names blob '{name}', which the request does not bring.")
                self._named[name] = self._kept(self._shared[name], f"blob '{name}'", limit)
            return self._named[name]
        return self._kept(field, what, limit)

    def _kept(self, text: object, what: str, limit: int) -> BlobId:
        data = decode_base64(text, what, limit)
        id_ = blob_id(data)
        self.blobs[id_] = data
        return id_


def submit_of(body: Json, by: User, parcel: Parcel) -> Submit:
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
    beside = _beside(body)
    try:
        converted = msgspec.convert(spec, JobSpec)
    except msgspec.ValidationError as error:
        raise misfit(error, "spec") from None
    _check_positions(converted, beside.tasks)
    key = "" if mutant("no-idempotency-key") else beside.key
    return Submit(
        spec=converted, by=by, key=key, tasks=beside.tasks, held=beside.held, gpus_given=beside.gpus_given
    )


def _beside(body: Json) -> _Beside:
    given = {field: body[field] for field in _Beside.__struct_fields__ if field in body}
    try:
        return msgspec.convert(given, _Beside)
    except msgspec.ValidationError as error:
        raise misfit(error, "") from None


def _check_positions(spec: JobSpec, tasks: tuple[int, ...]) -> None:
    """A task of a sweep finds its values by its number, so the numbers must be those that the spec announces."""
    step = max(1, spec.array_step)
    if spec.values and any(task != spec.array_min + step * position for position, task in enumerate(tasks)):
        raise UsageError("The 'tasks' of a sweep must count from 'array_min' on in steps of 'array_step'.")


def with_archived_parents(request: Submit, ended: dict[JobId, JobState]) -> Submit:
    """The same submit, with the final states of parents that only the archive knows."""
    return msgspec.structs.replace(request, ended_elsewhere=tuple(sorted(ended.items())))


def ids_of(body: Json) -> tuple[JobId, ...]:
    """The `ids` of a body; at least one."""
    ids = body.get("ids")
    if not isinstance(ids, list) or not ids or not all(isinstance(each, str) for each in ids):
        raise UsageError("The request needs 'ids': a list of job ids.")
    return tuple(JobId(each) for each in ids)


def prune_filters(body: Json) -> PruneFilters:
    """What a prune is to forget; raises UsageError rather than take a slip for "everything"."""
    try:
        found = msgspec.convert(body, PruneFilters)
    except msgspec.ValidationError as error:
        raise misfit(error, "") from None
    if found.ids == () and found.ended_before is None:
        raise UsageError("The 'ids' of the prune name no job, and it has no 'ended_before'.")
    return found
