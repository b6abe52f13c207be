"""The parts of the table of growth: what each measures, and at which sizes."""

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from configs import ablations
from launch.bench.growth import compiled, measured
from launch.bench.growth.rows import Asked, Row


@dataclasses.dataclass(frozen=True)
class Part:
  """A part of the table.

  Attributes:
    sizes: what is measured by default, from the smallest on.
    measure: yields the rows of what is asked for.
    counts: whether it has counts of a compiler; time is measured everywhere.
  """

  sizes: tuple[int, ...]
  measure: Callable[[Asked], Iterator[Row]]
  counts: bool = False


PARTS = {
  "data": Part((10, 100, 1000), measured.of_data),
  "rows": Part((1, 4, 16, 64), compiled.of_rows, counts=True),
  "tokens": Part((1024, 4096, 16384, 65536), compiled.of_tokens, counts=True),
  "layers": Part((6, 24, 96, 384), compiled.of_layers, counts=True),
  "decode": Part((128, 512, 2048), measured.of_decode),
  "prefill": Part((512, 1024, 2048, 4096), measured.of_prefill),
  "checkpoint": Part((10, 50, 250, 500), measured.of_checkpoint),
  "sweep": Part((2, 4, 8), measured.of_sweep),
  "score": Part((256, 1024), measured.of_score),
}
# At least one of each family, and each way of reading all layers before.
SYSTEMS = (
  "standard", "gate", "mhc", "attn_res", "block_attn_res", "denseformer", "value_residual",
)  # fmt: skip
ALL = "all"


def chosen(what: Sequence[str], sizes: Sequence[str], counted: bool) -> dict[str, Part]:
  """Returns the parts that the flags of the command choose.

  Args:
    what: names of parts; none for all.
    sizes: PART=SIZE,SIZE,... for parts with other sizes.
    counted: whether only parts with counts of a compiler are possible.

  Raises:
    ValueError: a flag is wrong.
  """
  possible = [name for name, part in PARTS.items() if part.counts or not counted]
  for name in what:
    if name not in possible:
      where = " with --counted" if counted else ""
      raise ValueError(f"--what={name}: no such part; allowed{where}: {', '.join(possible)}")
  found = {name: PARTS[name] for name in possible if not what or name in what}
  for text in sizes:
    name, _, words = text.partition("=")
    numbers = tuple(int(word) for word in words.split(",") if word.isdecimal())
    right = words == ",".join(map(str, numbers)) and len(numbers) > 1 and numbers[0] > 0
    if name not in PARTS or not right or list(numbers) != sorted(set(numbers)):
      raise ValueError(
        f"--sizes={text}: allowed: PART=SIZE,SIZE,... with two sizes or more, each above the one "
        f"before; parts are {', '.join(PARTS)}"
      )
    if name in found:
      found[name] = dataclasses.replace(found[name], sizes=numbers)
  return found


def systems(names: Sequence[str]) -> list[str]:
  """Returns the residual systems of these names, or those of configs/ablations for `all`.

  Raises:
    ValueError: there is no such system.
  """
  known = [name for name, _ in ablations.systems()]
  if list(names) == [ALL]:
    return known
  for name in names or [""]:
    if name not in known:
      raise ValueError(f"--systems={name}: no such system; allowed: {ALL}, {', '.join(known)}")
  return list(names)


def measure(
  parts: Mapping[str, Part], names: Sequence[str], topology: str, counted: bool, path: Path
) -> tuple[dict[str, Any], list[str]]:
  """Measures parts, and writes each row into a report as soon as it is known.

  Args:
    parts: the parts by name.
    names: the residual systems.
    topology: the chip that steps are compiled for; "" for this machine.
    counted: whether rows that are no counts of a compiler are left out.
    path: the report, whose other rows stay.

  Returns:
    The report, and what its new rows do that they may not.

  Raises:
    ValueError: the report that is there is damaged.
  """
  report, problems = _kept(path), []
  about = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "cores": os.cpu_count()}
  order = list(PARTS)
  for name, part in parts.items():
    print(f"{name}: {', '.join(map(str, part.sizes))}", file=sys.stderr, flush=True)
    for row in part.measure(Asked(part.sizes, names, topology, _command(name, part, topology))):
      if counted and not row.counted:
        continue
      found = row.to_json() | about
      kept = [old for old in report["rows"] if _key(old) != _key(found)]
      report = {"rows": sorted([*kept, found], key=lambda r: order.index(r["part"]))}
      path.write_text(json.dumps(report, indent=2))
      problems += [row.problem] * bool(row.problem)
  return report, problems


def _kept(path: Path) -> dict[str, Any]:
  """Returns the report of earlier calls, without rows if there is none."""
  try:
    return json.loads(path.read_text())
  except FileNotFoundError:
    return {"rows": []}
  except ValueError as error:
    raise ValueError(f"{path} is damaged: {error}; delete it, or choose another --out") from None


def _command(name: str, part: Part, topology: str) -> str:
  words = ["resjax bench growth", f"--what={name}"]
  if part.sizes != PARTS[name].sizes:
    words.append(f"--sizes={name}={','.join(map(str, part.sizes))}")
  return " ".join([*words, *[f"--topology={topology}"] * bool(topology)])


def _key(row: Mapping[str, Any]) -> tuple[str, str, str]:
  return row["part"], row["subject"], row["cost"]
