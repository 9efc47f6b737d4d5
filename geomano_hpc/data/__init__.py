"""Reading prepared stores for training: tensors in memory, deterministic batches, normalisers."""

from geomano_hpc.data.batches import epoch_batches, share_of_rank
from geomano_hpc.data.fields import Split, load_split
from geomano_hpc.data.prepare import ensure_store
from geomano_hpc.data_prep.store import Normaliser

__all__ = ["Normaliser", "Split", "ensure_store", "epoch_batches", "load_split", "share_of_rank"]
