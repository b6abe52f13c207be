"""The table of docs/comparisons.md of what the seven shapes of DepthBench need, compiled ahead.

  for layers in 16 20 24 28 32 42 70; do
    resjax aot --config=ablations/depthbench:$layers --topology=v5p-32 --json --out=$layers.json
  done
  python -m docs.comparisons.compiled_shapes *.json

keeps what the table has in compiled_shapes.json beside this file.
"""

import json
import pathlib
import sys

from resjax.aot import GIB

PATH = pathlib.Path(__file__).with_suffix(".json")
_KEPT = (
  "topology",
  "devices",
  "mesh",
  "residual",
  "jax",
  "fits",
  "lower_seconds",
  "compile_seconds",
)


def keep(*files: str) -> None:
  """Writes what the table needs of the files of `resjax aot`, whose names end in the layers."""
  rows = [_row(pathlib.Path(file)) for file in files]
  rows.sort(key=lambda row: (row["topology"], row["layers"]))
  PATH.write_text(json.dumps(rows, indent=1) + "\n")


def _row(file: pathlib.Path) -> dict:
  found = json.loads(file.read_text())
  layers = int(file.stem.rpartition("-")[2])
  row = {"layers": layers, **{key: found[key] for key in _KEPT if key in found}}
  row["available"] = found.get("available", found["hbm_available"])
  if found["fits"]:
    memory = found["memory"]
    parts = [*memory["arguments"].values()]
    row["needed"] = sum(parts) + sum(
      memory[k] for k in ("padding", "temporaries", "output", "code")
    )
    row |= {"cpu_seconds": found["cpu_seconds"], "temporaries": memory["temporaries"]}
  else:
    row |= {"needed": found["required"], "fits_with": found["fits_with"]}
  return row


def numbers() -> dict[str, str]:
  """Returns the table, and the release of JAX."""
  rows = json.loads(PATH.read_text())
  lines = ["| layers | devices | fits | needed, GiB | temporaries | to compile | CPU time |"]
  lines.append("|---" * 7 + "|")
  for row in rows:
    fits = "yes" if row["fits"] else f"with {row['fits_with']}"
    needed = f"{row['needed'] / GIB:.2f} of {row['available'] / GIB:.2f}"
    cells = [str(row["layers"]), row["topology"], fits, needed]
    if row["fits"]:
      wall = row["lower_seconds"] + row["compile_seconds"]
      cells += [f"{row['temporaries'] / GIB:.2f}", f"{wall:.0f} s", f"{row['cpu_seconds']:.0f} s"]
    lines.append(f"| {' | '.join(cells + [''] * (7 - len(cells)))} |")
  return {"table": "\n".join(("", *lines, "")), "jax": ", ".join({row["jax"] for row in rows})}


if __name__ == "__main__":
  keep(*sys.argv[1:])
