"""GGUF files, as the folder of Hugging Face that each of them was made of.

from resjax.data.gguf import GgufFile

GgufFile.open(pathlib.Path("smollm2-135m.gguf")).settings
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
