"""The end of a session of Ray, whose processes are otherwise a warning in some later test."""

import gc
import sys
import warnings


def end_ray() -> None:
    """End the session of Ray that this process is in, if there is one."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return
    with warnings.catch_warnings():
        # Ray drops its processes while they run.
        warnings.simplefilter("ignore", ResourceWarning)
        ray.shutdown()
        gc.collect()
