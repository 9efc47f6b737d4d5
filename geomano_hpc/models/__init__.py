"""Neural operators on regular grids. They know tensors and their own configuration, nothing of training or storage."""

from geomano_hpc.models.common.build import build_model, count_parameters
from geomano_hpc.models.geomano import GeoMaNO

__all__ = ["GeoMaNO", "build_model", "count_parameters"]
