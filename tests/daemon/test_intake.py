"""Bodies of requests: what is taken, and what is refused with one sentence that names the field."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuq.daemon import intake
from gpuq.errors import UsageError
from tests.builders import user
from tests.daemon.stage import Json, Stage, base64_of, played, submit_body

ONE_SENTENCE = re.compile(r"[A-Z'‘][^\n]*\.")


def spec(**fields: Any) -> Json:
    """A submit body whose spec has other fields; None leaves one out."""
    body = submit_body(**fields)
    body["spec"] = {name: value for name, value in body["spec"].items() if value is not None}
    return body


def body(**fields: Any) -> Json:
    """A submit body with other fields beside the spec; ... leaves one out."""
    return {name: value for name, value in {**submit_body(), **fields}.items() if value is not ...}


BAD: dict[str, tuple[Json, str]] = {
    "no spec": (body(spec=...), "'spec'"),
    "spec is a text": (body(spec="x"), "'spec'"),
    "spec is null": (body(spec=None), "'spec'"),
    "spec is a list": (body(spec=[]), "'spec'"),
    "no environment": (body(environment=...), "'environment'"),
    "environment is null": (body(environment=None), "'environment'"),
    "environment is a number": (body(environment=7), "environment"),
    "environment is not base64": (body(environment="%%%"), "environment"),
    "environment is not ascii": (body(environment="ümlaut"), "environment"),
    "environment is cut base64": (body(environment="QUJ"), "environment"),
    "environment has line breaks": (body(environment="QUJD\nQUJD"), "environment"),
    "environment names a missing blob": (body(environment={"blob": "e"}), "blob 'e'"),
    "environment names nothing": (body(environment={}), "blob 'None'"),
    "script is a number": (body(script=7), "script"),
    "script is not base64": (body(script="*"), "script"),
    "key is a number": (body(key=7), "'key'"),
    "key is null": (body(key=None), "'key'"),
    "tasks is a number": (body(tasks=3), "'tasks'"),
    "a task is a text": (body(tasks=[0, "1"]), "'tasks[1]'"),
    "a task is a fraction": (body(tasks=[0.5]), "'tasks[0]'"),
    "held is a text": (body(held="no"), "'held'"),
    "gpus_given is a number": (body(gpus_given=0), "'gpus_given'"),
    "no name": (spec(name=None), "`name`"),
    "no argv": (spec(argv=None), "`argv`"),
    "no cwd": (spec(cwd=None), "`cwd`"),
    "name is a number": (spec(name=5), "'spec.name'"),
    "argv is a text": (spec(argv="true"), "'spec.argv'"),
    "an argument is a number": (spec(argv=["sleep", 5]), "'spec.argv[1]'"),
    "gpus is a text": (submit_body({"gpus": "2"}), "'spec.resources.gpus'"),
    "gpus is a fraction": (submit_body({"gpus": 1.5}), "'spec.resources.gpus'"),
    "gpus is true": (submit_body({"gpus": True}), "'spec.resources.gpus'"),
    "resources is a list": (spec(resources=[1]), "'spec.resources'"),
    "nodes is a text": (submit_body({"gpus": 1, "nodes": "mill"}), "'spec.resources.nodes'"),
    "time limit is a text": (spec(time_limit_s="1h"), "'spec.time_limit_s'"),
    "requeue is a number": (spec(requeue=1), "'spec.requeue'"),
    "visible is another word": (spec(visible="all"), "'spec.visible'"),
    "dependency of another kind": (
        spec(dependencies={"terms": [{"kind": "afterwards", "job": "1"}]}),
        "'spec.dependencies.terms[0].kind'",
    ),
    "values are no pairs": (spec(values=[["lr"]]), "'spec.values[0]'"),
    "sweep tasks that have no value": (
        body(tasks=[0, 2], spec={**submit_body()["spec"], "values": [["x", ["a", "b"]]]}), "'tasks'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_submit_is_named(kind: str) -> None:
    """Whatever is wrong with a submit, the message is one sentence that names the field."""
    bad, field = BAD[kind]
    with pytest.raises(UsageError) as refused:
        intake.submit_of(bad, user(), intake.Parcel())
    assert field in refused.value.message
    assert ONE_SENTENCE.fullmatch(refused.value.message), refused.value.message
    assert len(refused.value.message) < 300


def test_a_submit() -> None:
    """A good body becomes a request: blobs are set aside, and the spec names them by their SHA-256."""
    parcel = intake.Parcel()
    found = intake.submit_of(
        {**submit_body({"gpus": 2, "gpu_type": "A100"}, environment=b"A=1", retries=3), "key": "k", "held": True,
         "tasks": [0, 1], "gpus_given": False, "script": base64_of(b"#!/bin/sh\n")},
        user("tom"), parcel,
    )  # fmt: skip
    assert (found.by.name, found.key, found.held, found.tasks, found.gpus_given) == ("tom", "k", True, (0, 1), False)
    assert (found.spec.resources.gpus, found.spec.resources.gpu_type, found.spec.retries) == (2, "A100", 3)
    assert found.spec.environment == intake.blob_id(b"A=1")
    assert found.spec.script is not None
    assert parcel.blobs == {found.spec.environment: b"A=1", found.spec.script: b"#!/bin/sh\n"}


def test_defaults_of_a_submit() -> None:
    """What a body leaves out: no array, not held, no key, GPUs meant as given, no script."""
    found = intake.submit_of(body(key=...), user(), intake.Parcel())
    assert (found.key, found.tasks, found.held, found.gpus_given, found.spec.script) == ("", (), False, True, None)


def test_who_submits_is_not_the_messages_business() -> None:
    """Owner, environment id and script id in a body are ignored: they come from the kernel and from the content."""
    forged = spec(script="1" * 64)
    forged["spec"]["environment"] = "0" * 64
    forged |= {"by": {"name": "root", "uid": 0}, "ended_elsewhere": [["1", "x"]]}
    found = intake.submit_of(forged, user("tom"), intake.Parcel())
    assert found.by == user("tom")
    assert found.spec.environment == intake.blob_id(b"PATH=/bin\0HOME=/h")
    assert found.spec.script is None
    assert found.ended_elsewhere == ()


def test_largest_environment_and_script() -> None:
    """One byte more than allowed is refused with both numbers."""
    data = base64.b64encode(b"x" * 11).decode()
    with pytest.raises(UsageError, match="The script has 11 bytes; at most 10 are accepted"):
        intake.decode_base64(data, "script", 10)
    assert intake.decode_base64(data, "script", 11) == b"x" * 11


def test_shared_blobs_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand submits that name one environment decode and keep it once."""
    calls: list[str] = []
    real: Callable[..., bytes] = intake.decode_base64

    def counted(text: object, what: str, limit: int) -> bytes:
        calls.append(what)
        return real(text, what, limit)

    monkeypatch.setattr(intake, "decode_base64", counted)
    parcel = intake.Parcel({"e": base64_of(b"A=1"), "unused": "%"})
    found = [intake.submit_of(body(environment={"blob": "e"}), user(), parcel) for _ in range(50)]
    assert len({each.spec.environment for each in found}) == 1
    assert calls == ["blob 'e'"]
    assert list(parcel.blobs.values()) == [b"A=1"]


@pytest.mark.parametrize(
    ("blobs", "words"),
    [
        ({"e": {"blob": "e"}}, "blob 'e'"),
        ({"e": 7}, "blob 'e'"),
        ({"e": "%"}, "blob 'e'"),
        (["e"], "'blobs'"),
        ("e", "'blobs'"),
    ],
)
def test_bad_shared_blobs(blobs: Any, words: str) -> None:
    """Blobs that name each other, or are no object of texts, are refused by name."""
    with pytest.raises(UsageError) as refused:
        intake.submit_of(body(environment={"blob": "e"}), user(), intake.Parcel(blobs))
    assert words in refused.value.message
    assert ONE_SENTENCE.fullmatch(refused.value.message)


@pytest.mark.parametrize("ids", [None, [], "42", [42], ["1", None], {"1": 1}])
def test_bad_ids(ids: object) -> None:
    """Verbs need a list of at least one id; a plain text is never taken letter by letter."""
    with pytest.raises(UsageError, match="'ids'"):
        intake.ids_of({"ids": ids})


@pytest.mark.parametrize(
    ("filters", "field"),
    [
        ({"ids": "42"}, "'ids'"),
        ({"ids": [42]}, "'ids[0]'"),
        ({"ids": []}, "'ids'"),
        ({"ended_before": "yesterday"}, "'ended_before'"),
        ({"states": "COMPLETED"}, "'states'"),
        ({"user": 7}, "'user'"),
        ({"name": "train"}, "`name`"),
    ],
)
def test_bad_prunes(filters: Json, field: str) -> None:
    """A prune with a slip in it forgets nothing: wrong shapes and unknown filters are refused, not ignored."""
    with pytest.raises(UsageError) as refused:
        intake.prune_filters(filters)
    assert field in refused.value.message
    assert ONE_SENTENCE.fullmatch(refused.value.message), refused.value.message


@played
async def test_refusals_over_the_socket(tmp_path: Path) -> None:
    """Through the socket each is a `usage` error with status 400, nothing is made, and the daemon serves on."""
    async with Stage(tmp_path) as stage:
        for bad, field in BAD.values():
            refusal = await stage.refusal("POST", "/v1/jobs", bad)
            assert (refusal.status, refusal.kind) == (400, "usage"), refusal
            assert field in refusal.message
        assert stage.loop.state.jobs == {}
        assert stage.store.blobs == {}
        await stage.submit()
