"""What a training on CPUs asks of the C library's memory."""

import ctypes
import logging
import os
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGEST_BLOCK = 32 * 2**20  # that glibc's heap may be told to serve
_NEVER = -1
# What a person sets to decide this otherwise.
_OWN_CHOICES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")
_OWN_TUNABLES = ("glibc.malloc.trim_threshold", "glibc.malloc.mmap", "glibc.malloc.top_pad")

logger = logging.getLogger(__name__)


def keep_freed_memory() -> bool:
    """Keep what tensors of up to 32 MiB leave behind for the next ones, instead of giving it back to the system.

    By default glibc returns freed memory at the end of its heap at once, and every step of a training pays the system
    for the same pages again, up to a sixth of its time. The peak stays what it is; the process holds it until it ends.
    Larger blocks still come from the system and go back to it. Does nothing with another C library, or where the
    environment decides this itself (MALLOC_TRIM_THRESHOLD_, GLIBC_TUNABLES). Returns whether it did, and logs it.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    chosen = any(name in os.environ for name in _OWN_CHOICES) or any(name in tunables for name in _OWN_TUNABLES)
    if platform.libc_ver()[0] != "glibc" or chosen:
        logger.info("freed memory: as the C library and the environment have it")
        return False
    library = ctypes.CDLL(None)
    settings = ((_MMAP_THRESHOLD, _LARGEST_BLOCK), (_TRIM_THRESHOLD, _NEVER))
    done = all(library.mallopt(name, value) == 1 for name, value in settings)
    logger.info("freed memory: %s", "kept for the next step" if done else "as the C library has it")
    return done
