"""The families of models that can be read and written, each with its tables of names.

from resjax.interop.huggingface.families import FAMILIES

FAMILIES["llama"]
"""

from resjax.interop.huggingface.families.experts import MIXTRAL, OLMOE, QWEN3_MOE
from resjax.interop.huggingface.families.family import Family
from resjax.interop.huggingface.families.gemma import GEMMA, GEMMA2, GEMMA3
from resjax.interop.huggingface.families.gpt import GPT2, GPT_NEOX
from resjax.interop.huggingface.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from resjax.interop.huggingface.families.olmo import OLMO2, OLMO3
from resjax.interop.huggingface.families.phi3 import PHI3
from resjax.interop.huggingface.families.smollm3 import SMOLLM3
from resjax.interop.huggingface.families.stablelm import STABLELM
from resjax.interop.huggingface.families.starcoder2 import STARCODER2

# A decoder is written as the first family that can express it.
FAMILIES = {
  family.model_type: family
  for family in (
    LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA, GEMMA2, GPT2, GPT_NEOX,
    GEMMA3, OLMO2, OLMO3, SMOLLM3, STARCODER2, STABLELM, PHI3,
    MIXTRAL, QWEN3_MOE, OLMOE,
  )
}  # fmt: skip

__all__ = ["FAMILIES", "Family"]
