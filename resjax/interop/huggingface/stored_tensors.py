"""The tensors in the safetensors files of a folder, and which file each of them is read from."""

import dataclasses
import fnmatch
import itertools
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import safetensors

from resjax.base import locations
from resjax.data import INDEX, SINGLE, ModelFiles, Named, OfGguf, Shards, model_files, warn_once
from resjax.interop.huggingface.tensors import Index

_OF_IMAGES = ("vision_tower.", "multi_modal_projector.")  # the beginnings of names of tensors
_OF_MODEL = re.compile(r"model(-\d+-of-\d+)?\.safetensors")  # names that transformers gives files
_SAVE = "is not read; load it with transformers, and write it with save_pretrained"
_OTHER_FORMATS = {  # what else a folder may hold, by patterns of names, and what to do about it
  "adapter_model.*": "is an adapter; merge it into its model (merge_and_unload of PEFT)",
  "model-*-of-*.safetensors": f"is one of several files, which are read by {INDEX}; bring it back",
  "model.*.safetensors": f"is a variant; rename it to {SINGLE}",
  "model.safetensors.index.*.json": f"is a variant; rename it to {INDEX}",
  "consolidated*.safetensors": "has other names of tensors; give the folder for transformers",
  "*.gguf": "is read by itself; give the file in place of its folder",
  "*.bin": _SAVE,
  "*.pth": _SAVE,
}


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


def stored_tensors(named: Named) -> dict[str, StoredTensor]:
  """Returns the tensors of a model by name; only headers of its safetensors files are read.

  The index decides the file of every tensor that it names. Others are taken from the file that
  holds them, the last one if several do, as transformers takes them. Whatever leaves a doubt about
  what is read is logged, in one line.

  Raises:
    ValueError: There are no such files, the index names a file or a tensor that is absent, or a
      file is damaged.
  """
  files = model_files.find(named)
  folder = files.place
  if (folder / "adapter_config.json").is_file():
    warn_once.warn_once(
      f"{folder} has an adapter (adapter_config.json), which is not applied; merge it into the "
      "model (merge_and_unload of PEFT) to read both"
    )
  weight_map = _weight_map(files)
  places = [folder / SINGLE] if weight_map is None else sorted(set(weight_map.values()))
  copies: dict[str, list[StoredTensor]] = {}
  for tensor in itertools.chain.from_iterable(map(_tensors, places)):
    copies.setdefault(tensor.name, []).append(tensor)
  found = {name: several[-1] for name, several in copies.items()}
  for name, file in (weight_map or {}).items():
    there = [tensor for tensor in copies.get(name, []) if tensor.file == file]
    if not there:
      others = ", ".join(tensor.file.name for tensor in copies.get(name, [])) or "no file"
      raise ValueError(
        f"{folder / INDEX}: weight_map has {name} in {file.name}, but {others} holds it; download "
        "the files of one revision again"
      )
    (found[name],) = there
  _say_doubts(folder, weight_map, found, copies)
  return found


def _tensors(file: pathlib.Path) -> Iterator[StoredTensor]:
  """Yields the tensors of a file."""
  try:
    with safetensors.safe_open(file, framework="numpy") as opened:
      names = opened.keys()
      for name in names:
        part = opened.get_slice(name)
        yield StoredTensor(file, name, tuple(part.get_shape()), part.get_dtype())
  except safetensors.SafetensorError as error:
    raise ValueError(f"{file} is damaged or cut off: {error}") from None


def _say_doubts(
  folder: pathlib.Path,
  weight_map: Mapping[str, pathlib.Path] | None,
  found: Mapping[str, StoredTensor],
  copies: Mapping[str, Sequence[StoredTensor]],
) -> None:
  """Logs tensors that stand in several files, those the index leaves out, and files beside it."""
  if weight_map is None:
    return
  more = "; the same holds for {} more"
  several = {name: places for name, places in copies.items() if len(places) > 1}
  for name, places in itertools.islice(several.items(), 1):
    warn_once.warn_once(
      f"{folder}: {name} stands in {', '.join(tensor.file.name for tensor in places)}; it is read "
      f"from {found[name].file.name}{', as the index says' * (name in weight_map)}"
      f"{more.format(len(several) - 1) * (len(several) > 1)}"
    )
  unnamed = [name for name in found if name not in weight_map]
  for name in unnamed[:1]:
    warn_once.warn_once(
      f"{folder}: {INDEX} does not name {name}; it is read from {found[name].file.name}"
      f"{more.format(len(unnamed) - 1) * (len(unnamed) > 1)}"
    )
  beside = {file.name for file in folder.iterdir() if _OF_MODEL.fullmatch(file.name)}
  if others := sorted(beside - {file.name for file in weight_map.values()}):
    warn_once.warn_once(
      f"{folder}: {', '.join(others)} is not read, since {INDEX} does not name it"
    )


def text_tensors(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
  """Returns the tensors that read text, by the names that they have without those for images.

  Raises:
    ValueError: two of them would have one name.
  """
  found: dict[str, StoredTensor] = {}
  for name, tensor in stored.items():
    part = name.removeprefix("model.")
    if part.startswith("language_model."):
      part = part.removeprefix("language_model.")
      name = part if part.startswith(("model.", "lm_head.")) else f"model.{part}"
    if not part.startswith(_OF_IMAGES):
      add(found, name, tensor)
  return found


def add(found: dict[str, StoredTensor], name: str, tensor: StoredTensor) -> None:
  """Adds a tensor under the name that the model has for it.

  Raises:
    ValueError: there is one of this name.
  """
  if name in found:
    one, other = sorted((tensor, found[name]), key=lambda each: each.name)
    raise ValueError(
      f"{one.name} in {one.file.name} and {other.name} in {other.file.name} are one tensor of the "
      f"model; remove one from {tensor.file.parent}"
    )
  found[name] = tensor


def has_tensors(files: ModelFiles) -> bool:
  """Returns whether a model has a file of tensors, or an index of them."""
  here = any((files.place / name).is_file() for name in (INDEX, SINGLE))
  return here or isinstance(files, OfGguf)


def _weight_map(files: ModelFiles) -> dict[str, pathlib.Path] | None:
  """Returns the file of every tensor that the index names; None if all are in one file."""
  folder = files.place
  if not (folder / INDEX).is_file():
    if not (folder / SINGLE).is_file():
      raise ValueError(f"{folder} has neither {SINGLE} nor {INDEX}; {_other_format(folder)}")
    return None
  names = files.json(INDEX, Shards).weight_map
  where, links = f"{folder / INDEX}: weight_map", _bound_of_links(folder)
  paths = {
    name: locations.inside(folder, name, where, links=links)
    for name in dict.fromkeys(names.values())
  }
  absent = [name for name, path in sorted(paths.items()) if not path.is_file()]
  if absent:
    raise ValueError(f"{folder / INDEX} names files that are absent: {', '.join(absent)}")
  return {tensor: paths[name] for tensor, name in names.items()}


def _other_format(folder: pathlib.Path) -> str:
  """Returns a remark on the format of a folder without model files, with a remedy."""
  names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
  for pattern, remedy in _OTHER_FORMATS.items():
    if found := fnmatch.filter(names, pattern):
      return f"{found[0]} {remedy}"
  return "other formats are not read"


def _bound_of_links(folder: pathlib.Path) -> pathlib.Path:
  """Returns the folder that links of a model's files may not leave.

  The cache of huggingface_hub keeps MODEL/snapshots/REVISION with links to MODEL/blobs.
  """
  found = pathlib.Path(os.path.realpath(folder))
  return found.parents[1] if found.parent.name == "snapshots" else found
