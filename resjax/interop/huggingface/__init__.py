"""Hugging Face folders of models, read and written without torch or transformers.

from resjax.interop import huggingface

decoder = huggingface.load("gemma-2-2b")
"""

from resjax.data import load_pretrained as tokenizer
from resjax.interop.huggingface.exporting import (
  DTYPES,
  SERVERS,
  check_target,
  export,
  find_family,
  find_form,
)
from resjax.interop.huggingface.families import FAMILIES
from resjax.interop.huggingface.loading import load, read_config

__all__ = [
  "DTYPES",
  "FAMILIES",
  "SERVERS",
  "check_target",
  "export",
  "find_family",
  "find_form",
  "load",
  "read_config",
  "tokenizer",
]
