"""Keeps memory allocation out of the times."""

from __future__ import annotations

import ctypes

# Parameters of glibc's mallopt.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4


def keep_freed_memory() -> bool:
    """Makes glibc keep memory that is freed, from now until the process ends. False where it cannot be told.

    XLA:CPU allocates the results of each call. For large ones glibc asks the system for pages and gives them
    back, or it does not, and which of the two depends on addresses: a call of a few milliseconds takes three
    times as long in some processes, and the same in others. With this the main arena's memory stays; what
    the arenas of other threads give back is not under this control, so that it happens less often.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, 2**31 - 1))
