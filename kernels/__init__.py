"""Selective scans with geometric correction. `geo_scan` is the one scan operator; backends compute it. Beside it what
stands between the matrix products of a layer."""

from geomano_hpc.kernels.backends import BackendStatus, backend_statuses, choose_backend, ready_backend
from geomano_hpc.kernels.dense import conv_silu, depthwise_conv, gate, gelu, layer_norm, negative_exp, norm_gate
from geomano_hpc.kernels.orders import ORDER_SETS, ScanOrder, order_set
from geomano_hpc.kernels.rows import split_rows
from geomano_hpc.kernels.scan import geo_scan

__all__ = [
    "ORDER_SETS",
    "BackendStatus",
    "ScanOrder",
    "backend_statuses",
    "choose_backend",
    "conv_silu",
    "depthwise_conv",
    "gate",
    "gelu",
    "geo_scan",
    "layer_norm",
    "negative_exp",
    "norm_gate",
    "order_set",
    "ready_backend",
    "split_rows",
]
