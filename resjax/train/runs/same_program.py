"""Which runs are so alike that one program can train them side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

from resjax.study import config_tree

# Settings in which runs of one program may differ, and their types.
FREE = {
  "workdir": str,
  "seed": int,
  "init_seed": int,
  "data.order_seed": int,
  "optim.learning_rate": float,
}


def check(configs: Sequence[Mapping[str, Any]]) -> None:
  """Raises ValueError unless configs differ in `FREE` alone, and each has a folder of its own.

  Several runs are refused that name a job of ml-goodput-measurement: their steps are the same.
  """
  first, *others = [config_tree.flat(config) for config in configs]
  if others and (job := first.get("train.goodput_job")):
    raise ValueError(
      f"config.train.goodput_job={job} is the job of one run, and runs that train together share "
      "their steps; leave it out, or train them one by one"
    )
  for other in others:
    for key in sorted({*first, *other} - FREE.keys()):
      if first.get(key) != other.get(key):
        raise ValueError(
          f"runs that train together may differ in {', '.join(FREE)} alone; config.{key} is "
          f"{first.get(key)!r} in {first['workdir']} and {other.get(key)!r} in {other['workdir']}"
        )
  folders = [str(config["workdir"]) for config in configs]
  for folder in folders:
    if folders.count(folder) > 1:
      raise ValueError(f"two runs have config.workdir={folder!r}; each needs a folder of its own")


def groups(configs: Sequence[Mapping[str, Any]], most: int) -> list[list[int]]:
  """Groups the indices of configs that differ in `FREE` alone, at most `most` in a group.

  The group of an earlier config comes first.
  """
  found: dict[str, list[list[int]]] = {}
  for index, config in enumerate(configs):
    fixed = {key: value for key, value in config_tree.flat(config).items() if key not in FREE}
    group = found.setdefault(repr(sorted(fixed.items())), [[]])
    if len(group[-1]) == most:
      group.append([])
    group[-1].append(index)
  return sorted(group for program in found.values() for group in program)
