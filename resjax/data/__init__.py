"""From text to packed rows of tokens: corpora, tokenizers, built folders, batches.

from resjax.data import dataset
from resjax.data import DataConfig, train_batches

batches = train_batches(config, dataset.build(config), batch_size=8, seed=0)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
