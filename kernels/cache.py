"""Where compiled kernels and what is known of them are kept between processes."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """GEOMANO_CACHE, or the user's cache."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "geomano_hpc"
    return Path(os.environ.get("GEOMANO_CACHE") or default)
