"""Neural operators on regular grids. They know tensors and their own configuration, nothing of training or storage."""

from geomano_hpc.models.geomano import GeoMaNO, build_model

__all__ = ["GeoMaNO", "build_model"]
