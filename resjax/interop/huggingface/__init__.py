"""Models in the folders of Hugging Face, read and written without torch or transformers."""

from resjax.data.pretrained_tokenizer import load_pretrained as tokenizer
from resjax.interop.huggingface.exporting import check_target, export
from resjax.interop.huggingface.express import express
from resjax.interop.huggingface.families import FAMILIES
from resjax.interop.huggingface.loading import load, read_config

__all__ = ["FAMILIES", "check_target", "export", "express", "load", "read_config", "tokenizer"]
