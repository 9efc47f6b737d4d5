"""From raw PDE fields to a prepared Zarr store: generators, readers, conversion, checker. Needs no torch, no GPU."""
