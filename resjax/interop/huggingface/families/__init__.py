"""The families of models that are read and written, each with one table of tensors."""

from resjax.interop.huggingface.families.family import Family
from resjax.interop.huggingface.families.gemma import GEMMA, GEMMA2
from resjax.interop.huggingface.families.gpt2 import GPT2
from resjax.interop.huggingface.families.gpt_neox import GPT_NEOX
from resjax.interop.huggingface.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3

# The first that can express a decoder is the one that it is written as.
FAMILIES = {
  family.model_type: family
  for family in (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA, GEMMA2, GPT2, GPT_NEOX)
}

__all__ = ["FAMILIES", "Family"]
