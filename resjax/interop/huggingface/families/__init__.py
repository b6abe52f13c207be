"""The families of models that can be read and written, each with its tables of names."""

from resjax.interop.huggingface.families.family import Family
from resjax.interop.huggingface.families.gemma import GEMMA, GEMMA2
from resjax.interop.huggingface.families.gpt import GPT2, GPT_NEOX
from resjax.interop.huggingface.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3

# A decoder is written as the first family that can express it.
FAMILIES = {
  family.model_type: family
  for family in (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA, GEMMA2, GPT2, GPT_NEOX)
}

__all__ = ["FAMILIES", "Family"]
