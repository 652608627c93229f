"""Settings for all tests: Hypothesis profiles, and one vocabulary of bytes for who needs no real one."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
# A longer hunt for faults: HYPOTHESIS_PROFILE=long.
settings.register_profile("long", parent=settings.get_profile("default"), max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
