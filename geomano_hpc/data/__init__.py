"""Reading prepared stores for training: samples in memory or streamed, deterministic batches, normalisers."""

from geomano_hpc.data.batches import GlobalBatch, epoch_batches, share_of_rank, training_batches
from geomano_hpc.data.fields import Batch, DataWait, Split, load_split
from geomano_hpc.data.loading import Loaded, load_splits
from geomano_hpc.data.prepare import ensure_store, require_store
from geomano_hpc.data.signature import Signature
from geomano_hpc.data_prep.store import Normaliser

__all__ = [
    "Batch",
    "DataWait",
    "GlobalBatch",
    "Loaded",
    "Normaliser",
    "Signature",
    "Split",
    "ensure_store",
    "epoch_batches",
    "load_split",
    "load_splits",
    "require_store",
    "share_of_rank",
    "training_batches",
]
