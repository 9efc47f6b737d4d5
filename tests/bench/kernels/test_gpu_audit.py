from dataclasses import replace

import pytest

from geomano_hpc.bench import recipes
from geomano_hpc.bench.kernels.gpu_audit import GPUS, Audit, audit_kernels, roofline_table, traffic_table


@pytest.mark.slow
def test_traffic_of_a_filled_gpu_and_the_roofline_from_it() -> None:
    """Forward, 1D, with the blocks of a filled GPU: each tensor once per direction, within 1.15 of the minimum."""
    scan = replace(recipes.full_scan("darcy"), kind="1d")
    forward, backward = audit_kernels({"darcy": scan})
    assert forward.part == "forward"
    x = 4 * scan.batch * scan.height * scan.width * scan.channels
    assert forward.bytes_by_tensor["x"] == pytest.approx(4 * x)
    assert forward.bytes_by_tensor["y"] == pytest.approx(7 * x)  # four writes, three reads
    assert forward.ratio <= 1.15
    assert backward.bytes_by_tensor["dy"] == pytest.approx(4 * x)
    assert backward.ratio <= 1.15
    assert len(traffic_table([forward, backward])) == len(roofline_table([forward, backward])) == 3


def test_roofline_names_what_bounds_a_call() -> None:
    audit = Audit("darcy", "forward", "", 1, {"x": 1e9}, 1e9, 1e9, exponentials=1.0, programs=1000, x_bytes=1)
    seconds, bound = audit.seconds(GPUS[1])
    assert bound == "memory"
    assert seconds == 2e9 / 2039e9
    many = Audit("darcy", "forward", "", 1, {"x": 1.0}, 0.0, 1.0, exponentials=1e12, programs=54, x_bytes=1)
    seconds, bound = many.seconds(GPUS[1])
    assert bound == "exp"
    assert seconds == pytest.approx(2 * 1e12 / GPUS[1].exponentials)  # 54 programs on 108 multiprocessors
