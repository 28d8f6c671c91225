"""What every test shares: hypothesis profiles.

``quick`` is the default. ``HYPOTHESIS_PROFILE=thorough pytest tests/property`` looks ten
times as far. Neither has a deadline: the machines that run tests are busy with others.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "quick",
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough", parent=settings.get_profile("quick"), max_examples=500
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
