"""Selective scans with geometric correction. `geo_scan` is the one operator; backends compute it."""

from geomano_hpc.kernels.backends import BackendStatus, backend_statuses, choose_backend, ready_backend
from geomano_hpc.kernels.orders import ORDER_SETS, ScanOrder, order_set
from geomano_hpc.kernels.scan import geo_scan

__all__ = [
    "ORDER_SETS",
    "BackendStatus",
    "ScanOrder",
    "backend_statuses",
    "choose_backend",
    "geo_scan",
    "order_set",
    "ready_backend",
]
