"""Data made by others, kept beside the checkout. A test that needs it skips only where the folder is missing."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "shared" / "data"

needs_real_data = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no folder {FOLDER.name} with the data of others")
