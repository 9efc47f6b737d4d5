"""From raw PDE fields to a prepared Zarr store: generators, readers, conversion, checker. Needs neither torch nor a GPU."""
