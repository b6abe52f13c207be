"""Other libraries: Hugging Face folders, lm-evaluation-harness, Flax Linen.

from resjax.interop import huggingface

decoder = huggingface.load("gemma-2-2b")
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
