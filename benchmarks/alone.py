"""Run a function in a process of its own, so that its peak memory is its own."""

import multiprocessing
import resource
from collections.abc import Callable


def alone(function: Callable[..., dict], *arguments) -> dict:
    """What the function returns, and ``peak MiB`` of the process that ran it."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measured, (function, arguments))


def _measured(function: Callable[..., dict], arguments: tuple) -> dict:
    result = function(*arguments)
    return result | {"peak MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10}
