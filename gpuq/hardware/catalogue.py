"""The GPU models gpuq knows: their memory, speed and power, and the names people and drivers call them.

Owns: reading gpus.csv, short type labels ("A100-80G"), matching of what a person asks for, speed priors.
May import: the standard library only.
One thing to know: figures are data-sheet values, good enough to rank models before the first runs have been
measured. An unknown figure is None, and an unknown model is no error.

A name is cut into words: "NVIDIA A100-SXM4-80GB" is the base "a100" with the qualifiers "sxm" and "80g".
Words such as Ti, SUPER or Ada belong to the base, for an RTX 3090 Ti is not an RTX 3090.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import functools
import importlib.resources
import math
import re
from dataclasses import dataclass
from typing import Any

REFERENCE_MODEL = "A100-SXM4-40GB"  # has relative speed 1

_MEMORY_TOLERANCE = 0.15  # NVML reports a little less than what is marketed
_BRANDS = frozenset(
    ("nvidia", "tesla", "geforce", "quadro", "amd", "instinct", "radeon", "gpu", "generation", "edition")
)
_FAMILIES = {"rtx": "RTX", "gtx": "GTX", "titan": "Titan", "rx": "RX"}
_SUFFIXES = {
    "ti": "Ti",
    "super": "Super",
    "ada": "Ada",
    "sff": "SFF",
    "xt": "XT",
    "xtx": "XTX",
    "gre": "GRE",
}
_FORM_FACTORS = frozenset(("pcie", "nvl"))  # in the label, unless a memory size tells models apart already
_SILENT = frozenset(("blackwell", "workstation", "oam", "ac", "hbm3", "hbm3e", "ls"))


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One model; units are in the field names. `name_pattern` matches the names NVML gives it."""

    name: str
    vendor: str
    architecture: str
    compute_capability: str
    memory_gib: float
    memory_bandwidth_gbps: float
    fp32_tflops: float | None
    fp16_tensor_tflops: float | None
    tdp_w: float | None
    min_power_limit_w: float | None
    idle_w: float | None
    nvlink_gbps: float | None
    mig_max_instances: int | None
    name_pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class _Name:
    """A name in canonical words, each lower case."""

    base: str
    qualifiers: frozenset[str]
    label: str


@functools.cache
def models() -> tuple[GpuModel, ...]:
    """Every model of the catalogue, in the order of the file; read at the first call."""
    table = importlib.resources.files(__package__).joinpath("gpus.csv").read_text(encoding="utf-8")
    return tuple(_model_from_row(row) for row in csv.DictReader(table.splitlines()))


def model_of_nvml_name(name: str, memory_mib: int | None = None) -> GpuModel | None:
    """The model that a driver calls `name`, or None.

    Some names cover variants with other memory (RTX 3080 with 10 or 12 GB). The row with the closest memory
    is taken, and where even that is far off it is returned with the memory that the driver reports.
    """
    candidates = [model for model in models() if model.name_pattern.match(name)]
    if not candidates:
        return None
    if memory_mib is None:
        return candidates[0]
    memory_gib = memory_mib / 1024
    closest = min(candidates, key=lambda model: abs(model.memory_gib - memory_gib))
    if abs(closest.memory_gib - memory_gib) <= _MEMORY_TOLERANCE * closest.memory_gib:
        return closest
    return dataclasses.replace(closest, memory_gib=float(round(memory_gib)))


def model_of_type(gpu_type: str) -> GpuModel | None:
    """The model a person means by "A100", "a100-80g", "rtx3090" or "4090", or None.

    Where several fit: a module (SXM) before a card, then the least memory, then the order of the catalogue.
    So "A100" is the A100-SXM4-40GB, and nobody gets more than was asked for in an estimate.
    """
    fitting = [model for model in models() if type_matches(gpu_type, short_type(model.name), model.name)]
    return min(fitting, key=lambda model: ("SXM" not in model.name, model.memory_gib), default=None)


def short_type(name: str) -> str:
    """The label of a model in tables and requests: "NVIDIA A100-SXM4-80GB" is "A100-80G".

    An unknown name is cleaned so that it is one word. A MIG slice keeps its profile: "A100-80G-MIG-1g.10gb".
    """
    card_name, _, profile = name.partition(" MIG ")
    label = _parse(card_name).label
    return f"{label}-MIG-{profile}" if profile else label


@functools.lru_cache(maxsize=4096)
def type_matches(asked: str, short_label: str, full_name: str) -> bool:
    """Whether a GPU is of the type a person asks for.

    The base must be the same ("a10" is no "A100"; "3090" is an "RTX3090"), and every further word must be
    true of the GPU by its label, its full name or the catalogue ("a100-80g", "a100-pcie", "h200-141g").
    """
    wanted = _parse(asked)
    offered = _parse(short_label)
    if not wanted.base or wanted.base not in _spoken_bases(offered.base):
        return False
    known = offered.qualifiers | _parse(full_name).qualifiers
    return wanted.qualifiers <= known or wanted.qualifiers <= known | _catalogued_qualifiers(full_name, known)


@functools.lru_cache(maxsize=256)
def relative_speed(name_or_type: str) -> float | None:
    """Expected speed against an A100 (SXM4, 40 GB), or None for a model the catalogue does not know.

    The geometric mean of the ratio of matrix rates (plain FP32 rate for models without matrix units) and the
    ratio of memory bandwidths: training is bound now by the one, now by the other.
    """
    model = _model_named(name_or_type)
    if model is None:
        return None
    reference = _by_name()[REFERENCE_MODEL]
    bandwidth = model.memory_bandwidth_gbps / reference.memory_bandwidth_gbps
    rate, reference_rate = _matrix_rate_tflops(model), _matrix_rate_tflops(reference)
    if rate is None or reference_rate is None:
        return bandwidth
    return math.sqrt(bandwidth * rate / reference_rate)


def simulated(gpu_type: str, count: int) -> list[dict[str, Any]]:
    """Descriptors of `count` simulated GPUs for the agent; ValueError names the closest known types."""
    model = model_of_type(gpu_type)
    if model is None:
        raise ValueError(f"No GPU model is called {gpu_type!r}; {_suggestion(gpu_type)}.")
    descriptor = {
        "name": _label_as_asked(gpu_type, model),
        "memory_mib": round(model.memory_gib * 1024),
        "power_limit_w": model.tdp_w,
        "bandwidth_gbps": model.memory_bandwidth_gbps,
        "compute_capability": model.compute_capability,
    }
    return [dict(descriptor) for _ in range(count)]


# -- the table


def _model_from_row(row: dict[str, str]) -> GpuModel:
    instances = row["mig_max_instances"]
    return GpuModel(
        name=row["name"],
        vendor=row["vendor"],
        architecture=row["architecture"],
        compute_capability=row["compute_capability"],
        memory_gib=float(row["memory_gib"]),
        memory_bandwidth_gbps=float(row["memory_bandwidth_gbps"]),
        fp32_tflops=_number(row["fp32_tflops"]),
        fp16_tensor_tflops=_number(row["fp16_tensor_tflops_dense"]),
        tdp_w=_number(row["tdp_w"]),
        min_power_limit_w=_number(row["min_power_limit_w"]),
        idle_w=_number(row["idle_w"]),
        nvlink_gbps=_number(row["nvlink_gbps"]),
        mig_max_instances=int(instances) if instances else None,
        name_pattern=re.compile(row["nvml_name_regex"]),
    )


def _number(cell: str) -> float | None:
    return float(cell) if cell else None


@functools.cache
def _by_name() -> dict[str, GpuModel]:
    return {model.name: model for model in models()}


def _model_named(name_or_type: str) -> GpuModel | None:
    """By the catalogue's own name, by the driver's name, or by what a person types."""
    known = _by_name().get(name_or_type)
    return known or model_of_nvml_name(name_or_type) or model_of_type(name_or_type)


def _catalogued_qualifiers(full_name: str, known: frozenset[str]) -> frozenset[str]:
    """What the catalogue adds to a name: its form factor, and its memory unless the name tells that itself."""
    model = _model_named(full_name)
    if model is None:
        return frozenset()
    catalogued = {word for word in _parse(model.name).qualifiers if not _is_memory(word)}
    if not any(_is_memory(word) for word in known):
        catalogued.add(f"{model.memory_gib:g}g")
    return frozenset(catalogued)


def _matrix_rate_tflops(model: GpuModel) -> float | None:
    return model.fp16_tensor_tflops or model.fp32_tflops


# -- names


@functools.lru_cache(maxsize=4096)
def _parse(name: str) -> _Name:
    """Cut a name, long or short, into base and qualifiers, and make the label of them."""
    words = re.sub(r"\(.*?\)", " ", name).replace("Max-Q", "MaxQ").replace("max-q", "maxq")
    kept = [word for word in re.findall(r"[A-Za-z0-9.]+", words) if word.lower() not in _BRANDS]
    if not kept:
        fallback = "-".join(re.findall(r"[A-Za-z0-9.]+", words))
        return _Name(fallback.lower(), frozenset(), fallback)
    base, rest = _base_and_rest(kept)
    qualifiers = frozenset(_canonical(word) for word in rest)
    shown = [word for word in rest if _is_shown(word, qualifiers)]
    label = "-".join([base, *(_spelled(word, base) for word in shown)])
    return _Name(base.lower(), qualifiers, label)


def _base_and_rest(words: list[str]) -> tuple[str, list[str]]:
    """Join what makes up the model's own name: RTX and 3090 and Ti; RTX and A6000 is just A6000."""
    first, position = words[0], 1
    parts = [_FAMILIES.get(first.lower(), _capitalised_model(first))]
    while position < len(words) and (parts[-1].lower() in (*_FAMILIES, "pro", "ai") or not parts[-1]):
        word = words[position]
        parts.append("PRO" if word.lower() == "pro" else _capitalised_model(word))
        position += 1
    while position < len(words) and words[position].lower() in _SUFFIXES:
        parts.append(_SUFFIXES[words[position].lower()])
        position += 1
    return _without_family("".join(parts)), words[position:]


def _capitalised_model(word: str) -> str:
    return word.upper() if word.islower() and any(letter.isdigit() for letter in word) else word


def _without_family(base: str) -> str:
    """People say A6000, not RTXA6000, and W7900, not PROW7900; VII alone says nothing."""
    if base.lower() == "vii":
        return "RadeonVII"
    letter_after_family = re.fullmatch(r"(?:RTX|PRO|AIPRO)([A-Z]\d{4}.*)", base, re.IGNORECASE)
    return letter_after_family.group(1) if letter_after_family else base


def _is_shown(word: str, qualifiers: frozenset[str]) -> bool:
    plain = word.lower()
    if plain in _SILENT or _canonical(word) == "sxm":
        return False
    has_memory = any(_is_memory(qualifier) for qualifier in qualifiers)
    return not (plain in _FORM_FACTORS and has_memory)


def _spelled(word: str, base: str) -> str:
    plain = _canonical(word)
    if base.upper() == "GH200" and plain in ("480g", "120g"):
        return "96G"  # the name counts the CPU's memory
    return plain.upper() if _is_memory(plain) or plain in _FORM_FACTORS else word


def _canonical(word: str) -> str:
    plain = word.lower()
    memory = re.fullmatch(r"(\d+)(?:gb?|gib)", plain)
    if memory:
        return f"{memory.group(1)}g"
    return "sxm" if re.fullmatch(r"sxm\d", plain) else plain


def _is_memory(word: str) -> bool:
    return re.fullmatch(r"\d+g", word) is not None


def _spoken_bases(base: str) -> tuple[str, ...]:
    """The base, and the same without its family: people say "3090", "4070ti" and "pro6000"."""
    return (base, re.sub(r"^(?:rtx|gtx|rx)(?=\d|pro)", "", base))


def _label_as_asked(asked: str, model: GpuModel) -> str:
    """The model's label with only those qualifiers that were asked for: "A100", "A100-80G"."""
    base, *qualifiers = short_type(model.name).split("-")
    wanted = _parse(asked).qualifiers
    return "-".join([base, *(word for word in qualifiers if word.lower() in wanted)])


def _suggestion(asked: str) -> str:
    labels = {short_type(model.name).split("-")[0] for model in models()}
    spoken = {label.lower(): label for label in sorted(labels)}
    close = difflib.get_close_matches(_parse(asked).base, spoken, n=3, cutoff=0.5)
    known = [spoken[label] for label in close] or ["A100", "H100", "RTX4090"]
    return f"try {', '.join(known)}"
