"""Settings for all tests: Hypothesis profiles, and one vocabulary of bytes for who needs no real one."""

from __future__ import annotations

import os

from compile_services import loop, running, service_folder  # noqa: F401  fixtures
from hypothesis import HealthCheck, settings

# The same examples in every run, so that a run that fails is this change's fault.
settings.register_profile(
    "default",
    deadline=None,
    max_examples=100,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
# Other examples in every run, and a longer hunt for faults: HYPOTHESIS_PROFILE=random or long.
settings.register_profile("random", parent=settings.get_profile("default"), derandomize=False)
settings.register_profile("long", parent=settings.get_profile("random"), max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
