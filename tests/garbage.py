"""Compiled dissectors: few objects, in circles, of 100 MB each, which the collector of garbage looks for too late."""

import gc


def free() -> None:
    """Free them, and let the collector pass over what is left from now on: else it goes through all of it each time."""
    gc.collect()
    gc.freeze()
