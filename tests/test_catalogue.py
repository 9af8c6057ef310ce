"""The GPU catalogue: the table itself, names of models, what a person's words match, and speed priors."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpuq.hardware.catalogue import (
    REFERENCE_MODEL,
    model_of_nvml_name,
    model_of_type,
    models,
    relative_speed,
    short_type,
    simulated,
    type_matches,
)


def matches(asked: str, name: str) -> bool:
    return type_matches(asked, short_type(name), name)


def test_table_is_complete_and_plausible() -> None:
    """Every row has a name of its own and positive figures; unknown ones are None, not 0."""
    assert len(models()) > 100
    assert len({model.name for model in models()}) == len(models())
    for model in models():
        assert model.memory_gib > 0
        assert model.memory_bandwidth_gbps > 0
        assert model.vendor in ("NVIDIA", "AMD")
        for figure in (model.fp32_tflops, model.fp16_tensor_tflops, model.tdp_w, model.idle_w):
            assert figure is None or figure > 0


def test_catalogue_is_read_once() -> None:
    """The table is parsed at the first use and kept."""
    assert models() is models()


def test_no_heavy_imports() -> None:
    """Importing the catalogue costs no third-party import, for the command line uses it."""
    program = (
        "import sys; import gpuq.hardware.catalogue; "
        "print({'msgspec', 'numpy', 'typer', 'rich', 'aiohttp', 'ortools'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80G"),
        ("NVIDIA A100 80GB PCIe", "A100-80G"),
        ("NVIDIA A100-PCIE-40GB", "A100-40G"),
        ("A100", "A100"),
        ("Tesla V100-SXM2-32GB", "V100-32G"),
        ("Tesla V100S-PCIE-32GB", "V100S-32G"),
        ("NVIDIA H100 80GB HBM3", "H100-80G"),
        ("NVIDIA H100 PCIe", "H100-PCIE"),
        ("NVIDIA H200 NVL", "H200-NVL"),
        ("NVIDIA GH200 480GB", "GH200-96G"),
        ("NVIDIA GeForce RTX 3090", "RTX3090"),
        ("NVIDIA GeForce RTX 3090 Ti", "RTX3090Ti"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX4070TiSuper"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX4090-Laptop"),
        ("GeForce GTX 1060 6GB", "GTX1060-6G"),
        ("NVIDIA TITAN V", "TitanV"),
        ("NVIDIA RTX A6000", "A6000"),
        ("Quadro RTX 6000", "RTX6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTXPRO6000-MaxQ"),
        ("NVIDIA L40S", "L40S"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("AMD Radeon RX 7900 XTX", "RX7900XTX"),
        ("AMD Radeon VII", "RadeonVII"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "A100-80G-MIG-1g.10gb"),
        ("Frobnicator 9000 (rev 2)", "Frobnicator-9000"),
    ],
)
def test_short_type(name: str, label: str) -> None:
    """Names as drivers give them become short labels of one word, which are labels of themselves."""
    assert short_type(name) == label
    assert "MIG" in label or short_type(label) == label


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("a100", "NVIDIA A100-SXM4-80GB"),
        ("a100", "A100"),
        ("A100-80G", "NVIDIA A100-SXM4-80GB"),
        ("a100-80gb", "NVIDIA A100 80GB PCIe"),
        ("a100-pcie", "NVIDIA A100 80GB PCIe"),
        ("a100-40g", "A100"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"),
        ("h100-sxm", "NVIDIA H100 80GB HBM3"),
        ("h200-141g", "NVIDIA H200"),
        ("rtx3090", "NVIDIA GeForce RTX 3090"),
        ("3090", "NVIDIA GeForce RTX 3090"),
        ("RTX 3090", "NVIDIA GeForce RTX 3090"),
        ("rtx_3090", "NVIDIA GeForce RTX 3090"),
        ("3090ti", "NVIDIA GeForce RTX 3090 Ti"),
        ("rtx a6000", "NVIDIA RTX A6000"),
        ("pro6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
        ("7900xtx", "AMD Radeon RX 7900 XTX"),
        ("frobnicator-9000", "Frobnicator 9000 (rev 2)"),
    ],
)
def test_type_matches(asked: str, name: str) -> None:
    """What people type matches the GPUs they mean."""
    assert matches(asked, name)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("a10", "NVIDIA A100-SXM4-80GB"),
        ("a100", "NVIDIA A10"),
        ("a100-80g", "NVIDIA A100-SXM4-40GB"),
        ("a100-80g", "A100"),
        ("a100-pcie", "NVIDIA A100-SXM4-80GB"),
        ("h100-nvl", "NVIDIA H100 80GB HBM3"),
        ("v100", "Tesla V100S-PCIE-32GB"),
        ("3090", "NVIDIA GeForce RTX 3090 Ti"),
        ("rtx2070", "NVIDIA GeForce RTX 2070 SUPER"),
        ("rtx6000", "NVIDIA RTX 6000 Ada Generation"),
        ("l40", "NVIDIA L40S"),
        ("", "NVIDIA A100-SXM4-80GB"),
        ("nvidia", "NVIDIA A100-SXM4-80GB"),
    ],
)
def test_type_does_not_match(asked: str, name: str) -> None:
    """A prefix, another memory size or another variant is another type."""
    assert not matches(asked, name)


def test_every_label_leads_back_to_its_model() -> None:
    """Asking for any model by its label finds a model of that label, and the label matches the model."""
    for model in models():
        label = short_type(model.name)
        found = model_of_type(label)
        assert found is not None
        assert short_type(found.name) == label
        assert matches(label, model.name)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("A100", "A100-SXM4-40GB"),
        ("a100-80g", "A100-SXM4-80GB"),
        ("v100", "V100-SXM2-16GB"),
        ("H100", "H100 SXM5 80GB"),
        ("h100-pcie", "H100 PCIe"),
        ("rtx3090", "GeForce RTX 3090"),
        ("4090", "GeForce RTX 4090"),
        ("b200", "B200"),
    ],
)
def test_model_of_type(asked: str, name: str) -> None:
    """The smallest module is meant where several models fit."""
    model = model_of_type(asked)
    assert model is not None
    assert model.name == name


def test_model_of_type_unknown() -> None:
    """A type nobody makes is None."""
    assert model_of_type("k9999") is None


def test_model_of_nvml_name() -> None:
    """A driver's name finds its row; what is not in the table, such as a laptop part, is None."""
    model = model_of_nvml_name("NVIDIA A100-SXM4-80GB", 81920)
    assert model is not None
    assert (model.name, model.compute_capability, model.mig_max_instances) == ("A100-SXM4-80GB", "8.0", 7)
    assert model_of_nvml_name("NVIDIA GeForce RTX 4090 Laptop GPU", 16384) is None
    assert model_of_nvml_name("A100") is None


def test_same_name_with_other_memory() -> None:
    """A variant that shares its name with another has the memory that the driver reports."""
    ten = model_of_nvml_name("NVIDIA GeForce RTX 3080", 10240)
    twelve = model_of_nvml_name("NVIDIA GeForce RTX 3080", 12288)
    assert ten is not None
    assert twelve is not None
    assert (ten.memory_gib, twelve.memory_gib) == (10, 12)


def test_relative_speed() -> None:
    """The reference is 1, faster and slower models stand on their sides, an unknown model has none."""
    assert relative_speed(REFERENCE_MODEL) == 1.0
    assert relative_speed("A100") == 1.0
    assert relative_speed("NVIDIA A100-SXM4-40GB") == 1.0
    h100, v100 = relative_speed("NVIDIA H100 80GB HBM3"), relative_speed("Tesla V100-SXM2-16GB")
    assert h100 == pytest.approx(((989 / 312) * (3350 / 1555)) ** 0.5)
    assert v100 == pytest.approx(((125 / 312) * (900 / 1555)) ** 0.5)
    assert relative_speed("GTX1080") == pytest.approx(((8.9 / 312) * (320 / 1555)) ** 0.5)
    assert relative_speed("Frobnicator 9000") is None


def test_relative_speed_is_known_for_every_model() -> None:
    """Every catalogued model has a positive prior, also those whose matrix rate is unknown."""
    for model in models():
        speed = relative_speed(model.name)
        assert speed is not None
        assert 0 < speed < 20


def test_simulated_descriptors() -> None:
    """A descriptor has the model's figures under the name that was asked for."""
    first, second = simulated("a100-80g", 2)
    assert (
        first
        == second
        == {
            "name": "A100-80G",
            "memory_mib": 81920,
            "power_limit_w": 400.0,
            "bandwidth_gbps": 2039.0,
            "compute_capability": "8.0",
        }
    )
    assert [simulated(asked, 1)[0]["name"] for asked in ("A100", "v100", "3090", "h100-pcie")] == [
        "A100",
        "V100",
        "RTX3090",
        "H100-PCIE",
    ]
    assert first is not second


def test_simulated_names_find_their_model_again() -> None:
    """A simulated GPU has the speed of the model it stands for, and matches what was asked."""
    for asked in ("A100", "A100-80G", "v100", "3090", "H100", "gh200", "a2000"):
        model = model_of_type(asked)
        (descriptor,) = simulated(asked, 1)
        assert model is not None
        assert relative_speed(descriptor["name"]) == relative_speed(model.name)
        assert matches(asked, descriptor["name"])


def test_simulated_unknown_type_suggests() -> None:
    """A mistyped model is refused with the names that come closest."""
    with pytest.raises(ValueError, match=r"'a1000'.*A100"):
        simulated("a1000", 4)
