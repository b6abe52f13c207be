"""Opens a new checkpoint as a reader would: all of its structure, and none of its values.

OCDBT, the format of Orbax, keeps the arrays of an item in a tree of keys, one for each chunk of an
array, whose values lie in data files. https://google.github.io/tensorstore/kvstore/ocdbt
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import tensorstore as ts

from resjax import locations, manifest, typed_json
from resjax.checkpoint import checksums, reader
from resjax.library_paths import LiteralPath
from resjax.manifest import Damaged

# Where OCDBT says that a value lies: the folder of the process that wrote it, file, offset, length.
_VALUE = re.compile(r"value:(?P<folder>[^:]*):(?P<file>[^:]+):(?P<offset>\d+):(?P<length>\d+)")


def check(checkpoint: LiteralPath) -> None:
  """Opens a checkpoint whose manifest is written; one process alone may do so.

  It is found among those of its folder, files have the sizes of the manifest, what is JSON can be
  parsed, arrays have the dtypes and shapes that were saved, and each of their chunks lies within a
  file.

  Raises:
    Damaged: something is missing, or is not as it was saved.
    Exception: whatever Orbax or TensorStore raises for what it cannot open.
  """
  if checkpoint.name not in map(str, reader.saved_steps(checkpoint.parent)):
    raise Damaged("it is not among the finished ones of its folder")
  files = manifest.check(checkpoint, contents=False, alone=True).files
  recorded = reader.recorded(checkpoint)
  typed_json.read(checkpoint / reader.DATA / reader.JSON, dict[str, Any])
  items = sorted({path.split("/")[0] for path in recorded})
  trees = {item: reader.described(checkpoint / item) for item in items}
  if wrong := checksums.differences(recorded, trees):
    raise Damaged(f"{wrong[0]}, where it is opened")
  for item, tree in trees.items():
    sizes = {name.removeprefix(f"{item}/"): size for name, (size, _) in files.items()}
    _check_chunks(checkpoint / item, tree, sizes)


def _check_chunks(item: LiteralPath, tree: Any, sizes: Mapping[str, int]) -> None:
  """Raises Damaged where a chunk of an array is missing, or lies where there is no file."""
  values = dict(_entries(item))
  for array in reader.leaves(tree).values():
    per_axis = zip(array.shape, array.storage.chunk_shape, strict=True)
    indices = itertools.product(*(range(-(-size // chunk)) for size, chunk in per_axis))
    for index in indices:
      key = f"{array.name}/{'.'.join(map(str, index)) or 0}"
      if key not in values:
        raise Damaged(f"chunk {key} of {item.name} is missing")
      found = _VALUE.fullmatch(values[key])
      if found and sizes.get(found["folder"] + found["file"], -1) < sum(
        int(found[part]) for part in ("offset", "length")
      ):
        raise Damaged(f"chunk {key} of {item.name} is not in {found['folder']}{found['file']}")


def _entries(item: LiteralPath) -> Iterator[tuple[str, str]]:
  """Yields the keys of an item, and where their values lie; empty: beside their keys."""
  store = ts.KvStore.open(_spec(item)).result()
  roots = [version["root"] for version in ts.ocdbt.dump(store).result()["versions"]]
  nodes = [(b"", roots[-1]["location"])]
  while nodes:
    prefix, location = nodes.pop()
    for entry in ts.ocdbt.dump(store, node=location).result()["entries"]:
      if "location" in entry:
        nodes.append((prefix + entry["subtree_common_prefix"], entry["location"]))
      else:
        yield (prefix + entry["key"]).decode(), entry.get("indirect_value", "")


def _spec(folder: LiteralPath) -> dict[str, str]:
  """Returns what TensorStore calls a folder."""
  if locations.is_local(folder):
    return {"driver": "file", "path": f"{folder}/"}
  bucket, _, name = str(folder).removeprefix("gs://").partition("/")
  return {"driver": "gcs", "bucket": bucket, "path": f"{name}/"}
