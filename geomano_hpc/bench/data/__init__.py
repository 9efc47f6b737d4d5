"""The way of the data: generation, conversion, loading."""
