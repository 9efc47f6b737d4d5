"""What stands between the matrix products of a layer in Triton: each one pass over memory, forwards and backwards.

Channels lie along the lanes; loads of a thread are 16 bytes where E allows it. E is a constant of a kernel, since a
model has one; the batch and the grid are not, and another size compiles nothing new.
"""
