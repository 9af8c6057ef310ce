"""Names of GPU types as people type them."""

from __future__ import annotations

import pytest

from gpuq.core.gpu_types import type_matches

MATCHES = [
    ("a100", "A100-80G", ""),
    ("A100", "A100", ""),
    ("a100-80g", "A100-80G", ""),
    ("a100 80GB", "A100-80G", ""),
    ("a100_80GiB", "A100-80G", ""),
    ("rtx3090", "RTX3090", ""),
    ("3090", "RTX3090", ""),
    ("RTX 3090", "RTX3090", ""),
    ("rtx-3090", "RTX3090", "NVIDIA GeForce RTX 3090"),
    ("rtx 3080 ti", "RTX3080Ti", "NVIDIA GeForce RTX 3080 Ti"),
    ("a6000", "RTXA6000", "NVIDIA RTX A6000"),
    ("a100-pcie", "A100-40G", "NVIDIA A100-PCIE-40GB"),
    ("a100-sxm", "A100-80G", "NVIDIA A100-SXM4-80GB"),
    ("any", "T4", ""),
]
MISSES = [
    ("a10", "A100-80G", "NVIDIA A100-SXM4-80GB"),
    ("a100-40g", "A100-80G", "NVIDIA A100-SXM4-80GB"),
    ("100", "A100", ""),
    ("l40", "L40S", "NVIDIA L40S"),
    ("a10", "A10G", ""),
    ("3080", "RTX3080Ti", "NVIDIA GeForce RTX 3080 Ti"),
    ("309", "RTX3090", ""),
    ("a100-pcie", "A100-80G", "NVIDIA A100-SXM4-80GB"),
    ("h100", "GH100", ""),
    ("-", "A100", ""),
]


@pytest.mark.parametrize(("asked", "label", "full"), MATCHES)
def test_a_name_people_use_matches(asked: str, label: str, full: str) -> None:
    """Case and separators do not matter, and every usual way to name a card finds it."""
    assert type_matches(asked, label, full)


@pytest.mark.parametrize(("asked", "label", "full"), MISSES)
def test_another_card_does_not_match(asked: str, label: str, full: str) -> None:
    """A name that is the beginning of another one, or another variant, is another card."""
    assert not type_matches(asked, label, full)


def test_a_slice_is_only_matched_by_its_profile() -> None:
    """Who asks for an A100 does not get a seventh of one; who asks for the slice does."""
    label = "A100-80G-MIG-1g.10gb"
    assert not type_matches("a100", label, "", True)
    assert not type_matches("a100-80g", label, "", True)
    assert type_matches("1g.10gb", label, "", True)
    assert type_matches("a100-80g-mig-1g.10gb", label, "", True)
