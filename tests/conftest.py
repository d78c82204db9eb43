"""What all tests share."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "default",
    derandomize="CI" in os.environ,
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("default")
