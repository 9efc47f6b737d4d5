"""How a scan is divided: enough programs for a GPU, and no more work than that takes."""

import pytest

from geomano_hpc.kernels.triton.blocks import Blocks, blocks_for, chunk_count, wave

A100 = 4 * 108


def test_a_batch_that_fills_the_gpu_has_one_chunk() -> None:
    assert chunk_count(2 * A100, 128, A100, again=0.75) == 1
    assert chunk_count(1, 1, A100) == 1


def test_a_small_batch_gets_two_programs_for_every_scheduler() -> None:
    chunks = chunk_count(64, 128, A100, again=0.75)
    assert 1.8 * A100 <= 64 * chunks <= 2 * A100


def test_chunks_that_are_composed_of_many_others_are_fewer() -> None:
    many = chunk_count(64, 128, 4 * 148, again=0.75)
    assert chunk_count(64, 128, 4 * 148, again=0.75, composed=1 / 80) < many <= 64


@pytest.mark.parametrize(("dstate", "expected"), [(1, (1, 1, 32)), (5, (2, 4, 16)), (16, (4, 4, 8)), (64, (16, 4, 2))])
def test_lanes_are_groups_of_dstates_and_channels(dstate: int, expected: tuple[int, int, int]) -> None:
    assert wave(dstate, 32) == expected
    assert wave(dstate, 64).channels == 2 * expected[2]


def test_every_kind_of_warp_has_sizes() -> None:
    assert blocks_for(32, amd=False) == Blocks()
    cdna, rdna = blocks_for(64, amd=True), blocks_for(32, amd=True)
    assert (cdna.lanes, rdna.lanes) == (64, 32)
    assert cdna.sweep_registers == rdna.sweep_registers == 0  # which only NVIDIA's assembler takes
