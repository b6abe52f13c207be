"""Folders for transformers with code of their own, for decoders that no stock family expresses.

The code is put together from the text of modules in `torch_source`: nothing here imports torch. A
folder that is read again gives its decoder by its settings and tensors; its code is not run.

  from resjax.interop.huggingface import remote_code

  remote_code.files("attn_res")  # name and text of each file of code
"""

from resjax.interop.huggingface.remote_code.assembly import class_name, files, names, template
from resjax.interop.huggingface.remote_code.serving import vllm_obstacles
from resjax.interop.huggingface.remote_code.settings import (
  MODEL_TYPE,
  obstacles,
  parts,
  read_settings,
  settings,
)
from resjax.interop.huggingface.remote_code.tensor_names import RemoteNames, apart, together

__all__ = [
  "MODEL_TYPE",
  "RemoteNames",
  "apart",
  "class_name",
  "files",
  "names",
  "obstacles",
  "parts",
  "read_settings",
  "settings",
  "template",
  "together",
  "vllm_obstacles",
]
