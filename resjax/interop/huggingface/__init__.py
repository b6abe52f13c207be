"""Models in the folders of Hugging Face, read and written without torch or transformers."""

from resjax.interop.huggingface.families import FAMILIES
from resjax.interop.huggingface.loading import load, read_config

__all__ = ["FAMILIES", "load", "read_config"]
