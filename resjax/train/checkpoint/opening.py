"""Opens a new checkpoint as a reader would: all of its structure, and none of its values.

OCDBT, the format of Orbax, keeps the arrays of an item in a tree of keys, one for each chunk of an
array, whose values lie in data files. https://google.github.io/tensorstore/kvstore/ocdbt
"""

import itertools
import re
from collections.abc import Mapping
from typing import Any

import tensorstore as ts

from resjax.base import Damaged, LiteralPath, locations, manifest, typed_json
from resjax.train.checkpoint import reader

_TREE, _SHARDINGS = "_METADATA", "_sharding"  # the files in which Orbax describes an item
_DATA_FILE = re.compile(r"ocdbt\.process_\d+/d/\w+")  # the name of a data file within an item


def check(checkpoint: LiteralPath) -> None:
  """Opens a checkpoint whose manifest is written; one process alone may do so.

  Its folder lists it, files have the sizes of the manifest, JSON files can be
  parsed, arrays have the dtypes and shapes that were saved, all of their chunks have keys, and data
  files are as large as the values that these have there.

  Raises:
    Damaged: something is missing or damaged.
    Exception: an error of TensorStore, which cannot open an array.
  """
  if checkpoint.name not in map(str, reader.saved_steps(checkpoint.parent)):
    raise Damaged("it is not among the finished ones of its folder")
  files = manifest.check(checkpoint, contents=False, alone=True).files
  typed_json.read(checkpoint / reader.DATA / reader.JSON, dict[str, Any])
  items: dict[str, dict[str, Mapping[str, Any]]] = {}
  for path, array in reader.recorded(checkpoint).items():
    item, _, name = path.partition("/")
    items.setdefault(item, {})[name] = array
  for item, arrays in items.items():
    sizes = {name.removeprefix(f"{item}/"): size for name, (size, _) in files.items()}
    for name in (_TREE, *({_SHARDINGS} & set(sizes))):
      typed_json.read(checkpoint / item / name, dict[str, Any])
    _check_arrays(checkpoint / item, arrays, sizes)


def _check_arrays(
  item: LiteralPath, arrays: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, int]
) -> None:
  """Raises Damaged where an array is another one or lacks a chunk, or where values are missing."""
  base = _spec(item)
  # Orbax's own reader, and a list of where each value lies, would cost 100 KB a save: TensorStore
  # 0.1.86 never frees the dicts that it makes of JSON.
  root = ts.ocdbt.dump(ts.KvStore.open(base).result()).result()["versions"][-1]["root"]
  written = sum(size for name, size in sizes.items() if _DATA_FILE.fullmatch(name))
  if written < (wanted := root["statistics"]["num_indirect_value_bytes"]):
    raise Damaged(f"the data files of {item.name} have {written:,} bytes of {wanted:,}")
  store = {"driver": "ocdbt", "base": base}
  keys = set(ts.KvStore.open(store).result().list().result())
  for path, saved in arrays.items():
    name = path.replace("/", ".")  # as Orbax calls it
    spec = {"driver": "zarr", "kvstore": store | {"path": f"{name}/"}}
    found = ts.open(spec, open=True, read=True).result()
    if (found.dtype.name, list(found.shape)) != (saved["dtype"], saved["shape"]):
      raise Damaged(
        f"{item.name}/{path} is {found.dtype.name}{list(found.shape)}, and was "
        f"{saved['dtype']}{saved['shape']} when it was saved"
      )
    chunks = zip(found.shape, found.chunk_layout.read_chunk_template.shape, strict=True)
    for index in itertools.product(*(range(-(-size // chunk)) for size, chunk in chunks)):
      key = f"{name}/{'.'.join(map(str, index)) or 0}"
      if key.encode() not in keys:
        raise Damaged(f"chunk {key} of {item.name} is missing")


def _spec(folder: LiteralPath) -> dict[str, str]:
  """Returns what TensorStore calls a folder."""
  if locations.is_local(folder):
    return {"driver": "file", "path": f"{folder}/"}
  bucket, _, name = str(folder).removeprefix("gs://").partition("/")
  return {"driver": "gcs", "bucket": bucket, "path": f"{name}/"}
