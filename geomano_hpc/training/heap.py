"""What a training on CPUs asks of the C library's memory."""

import ctypes
import os
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGEST_BLOCK = 32 * 2**20  # that glibc's heap may be told to serve
_EVERYTHING = 2**31 - 1


def keep_freed_memory() -> bool:
    """Keep what tensors of up to 32 MiB leave behind for the next ones, instead of giving it back to the system.

    By default glibc returns freed memory at the end of its heap at once, and every step of a training pays the system
    for the same pages again, up to a sixth of its time. The peak stays what it is; the process holds it until it ends.
    Larger blocks still come from the system and go back to it. Does nothing with another C library, or where the
    environment sets up malloc itself (MALLOC_TRIM_THRESHOLD_, GLIBC_TUNABLES). Returns whether it did.
    """
    chosen_already = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if platform.libc_ver()[0] != "glibc" or chosen_already:
        return False
    library = ctypes.CDLL(None)
    settings = ((_MMAP_THRESHOLD, _LARGEST_BLOCK), (_TRIM_THRESHOLD, _EVERYTHING))
    return all(library.mallopt(name, value) == 1 for name, value in settings)
