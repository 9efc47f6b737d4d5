"""Races between programs and threads of Triton kernels, found in the interpreter."""
