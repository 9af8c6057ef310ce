"""What a test needs from the machine. Owns the one rule for missing tools; may import: the standard library, pytest.

One thing to know: a laptop may lack root, strace or a compiler, so such tests are skipped there with the reason; a
release must not, so with GPUQ_REQUIRE_ALL=1 the same lack is a failure.
"""

from __future__ import annotations

import os

import pytest


def need(condition: object, reason: str) -> None:
    """Skip the test with `reason` unless `condition` holds; fail it instead where everything is required."""
    if condition:
        return
    if os.environ.get("GPUQ_REQUIRE_ALL") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
