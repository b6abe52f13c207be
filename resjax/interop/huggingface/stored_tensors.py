"""The tensors in the safetensors files of a folder, which are read slice by slice."""

import dataclasses
import pathlib

import numpy as np
import safetensors

from resjax.data.pretrained_tokenizer import read_json
from resjax.interop.huggingface.tensors import Index

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


@dataclasses.dataclass(frozen=True)
class StoredTensor:
  """A tensor in a file: its name there, its shape, and its dtype as safetensors spells it."""

  file: pathlib.Path
  name: str
  shape: tuple[int, ...]
  dtype: str

  def slice(self, index: Index) -> np.ndarray:
    """Returns a slice of the tensor, in its own dtype."""
    # The file is opened anew: if it stayed open, its pages would count as memory of the process.
    with safetensors.safe_open(self.file, framework="numpy") as opened:
      return opened.get_slice(self.name)[tuple(index)]


def stored_tensors(folder: pathlib.Path) -> dict[str, StoredTensor]:
  """Returns the tensors in the safetensors files of a folder, by name; only headers are read.

  Raises:
    ValueError: There are no such files, the index names an absent one, or one is damaged.
  """
  found = {}
  for file in _files(folder):
    try:
      with safetensors.safe_open(file, framework="numpy") as opened:
        names = opened.keys()
        for name in names:
          part = opened.get_slice(name)
          found[name] = StoredTensor(file, name, tuple(part.get_shape()), part.get_dtype())
    except safetensors.SafetensorError as error:
      raise ValueError(f"{file} is damaged or cut off: {error}") from None
  return found


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
  if not (folder / INDEX).is_file():
    if not (folder / SINGLE).is_file():
      raise ValueError(f"{folder} has neither {SINGLE} nor {INDEX}; other formats are not read")
    return [folder / SINGLE]
  index = read_json(folder / INDEX).get("weight_map", {})
  files = [folder / name for name in sorted(set(index.values()))]
  absent = [file.name for file in files if not file.is_file()]
  if absent:
    raise ValueError(f"{folder / INDEX} names files that are absent: {', '.join(absent)}")
  return files
