"""Compares compute and memory time of the TPU kernels by the compiler's schedule; needs no TPU.

libtpu compiles the kernels for chips that need not be there, and writes their instruction bundles,
of which a chip runs one per cycle. The bundles for one tile of tokens are counted, also those that
a branch may skip, and compared with the cycles that the tile's copies take at nominal bandwidth.
"""

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from launch.bench.kernels.tpu_compile import KernelCase, compile_kernel, sizes_of
from resjax.aot import ENVIRONMENT
from resjax.base.hardware import TPU_CHIPS
from resjax.cli import shipped
from resjax.kernels.depth_attention.mosaic_tpu import TOKENS, BlockPlan, DirectPlan, TpuTiles, tiles
from resjax.kernels.mosaic_tpu import ROWS

_BUNDLE = re.compile(r"^\s*0x([0-9a-f]+)\s+(?:[A-Z]{2})?:\s+(>*)\s*\{")
_VECTOR = re.compile(r"= (v\w+)")
_CLEARING = 16  # so many stores in a row clear memory


CASES = (
  *(KernelCase(name, fused) for name in ("forward", "backward") for fused in (False, True)),
  KernelCase("forward", False, "block", num_reads=8),
  KernelCase("backward", True, "block", num_reads=8),
  KernelCase("forward", True, "merge", num_reads=8),
  KernelCase("backward", True, "merge", num_reads=8),
)


@dataclasses.dataclass(frozen=True)
class Schedule:
  """What one tile of tokens costs.

  Attributes:
    chip: key of `TPU_CHIPS`.
    case: the kernel.
    tokens: the number of tokens of a tile.
    row_group_bundles: the number of bundles for a group of 16 tokens.
    tile_bundles: the number of bundles for a tile.
    copy_cycles: the number of cycles in which the bytes of a tile move at nominal bandwidth.
  """

  chip: str
  case: KernelCase
  tokens: int
  row_group_bundles: float
  tile_bundles: float
  copy_cycles: float

  @property
  def ratio(self) -> float:
    """Compute time over memory time; up to 1 memory is the limit."""
    return self.tile_bundles / self.copy_cycles


def main(out_dir: Path, chips: Sequence[str]) -> list[Schedule]:
  """Compiles all cases, prints a table, and writes `tpu_schedule.json` and `tpu_schedule.png`.

  Args:
    out_dir: the folder to write to, which is made if it is missing.
    chips: keys of `TPU_CHIPS`.

  Raises:
    ValueError: a chip is not known, or libtpu has compiled nothing.
  """
  unknown = set(chips) - set(TPU_CHIPS)
  if unknown:
    raise ValueError(f"chips={sorted(unknown)} are not known; allowed: {', '.join(TPU_CHIPS)}")
  out_dir.mkdir(parents=True, exist_ok=True)
  print(f"{_shape(CASES[0])}: bundles and copy cycles per tile")
  schedules = []
  for chip in chips:
    for case in CASES:
      sizes = _tile_sizes(chip, case)
      if sizes is None:
        print(f"{chip:5} {_kind(case)}: no tile fits on the chip", flush=True)
        continue
      schedules.append(measure(chip, case, sizes))
      print(_line(schedules[-1]), flush=True)
  rows = [vars(s.case) | vars(s) | {"ratio": s.ratio} for s in schedules]
  for row in rows:
    del row["case"]
  (out_dir / "tpu_schedule.json").write_text(json.dumps(rows, indent=1) + "\n")
  _plot(schedules, out_dir / "tpu_schedule.png")
  return schedules


def measure(chip: str, case: KernelCase, sizes: TpuTiles) -> Schedule:
  """Compiles one kernel in another process, in which libtpu writes the schedule."""
  with tempfile.TemporaryDirectory() as folder:
    flags = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
    request = json.dumps([chip, dataclasses.asdict(case), dataclasses.asdict(sizes)])
    done = subprocess.run(
      [sys.executable, "-m", __spec__.name, request],
      cwd=shipped.root(),  # where Python finds this module
      env=os.environ | ENVIRONMENT | {"LIBTPU_INIT_ARGS": flags},
      capture_output=True,
      text=True,
    )
    kernel = f"depth_attention_{'' if case.kind == 'direct' else f'{case.kind}_'}{case.name}"
    found = list(Path(folder).glob(f"*{kernel}*final_bundles.txt"))
    found = [path for path in found if "analysis" not in path.name]
    if done.returncode or len(found) != 1:
      raise ValueError(
        f"libtpu wrote {len(found)} schedules of {kernel} for {chip}; it must be "
        f"installed (the extra `tpu`):\n{done.stderr[-2000:]}"
      )
    outside, inside = count_bundles(found[0].read_text().splitlines())
  moved = case.passes * sizes.tokens * case.width * jnp.dtype(case.dtype).itemsize
  copy_cycles = moved / TPU_CHIPS[chip].core_bandwidth * TPU_CHIPS[chip].clock
  rounds = sizes.tokens // ROWS
  per_round = inside / _row_groups_at_once(chip, case, sizes)
  total = outside + rounds * per_round
  return Schedule(chip, case, sizes.tokens, per_round, total, copy_cycles)


def _tile_sizes(chip: str, case: KernelCase) -> TpuTiles | None:
  """Returns the tile sizes that the kernel chooses, None if no tile fits on the chip."""
  if case.kind == "merge":
    return TpuTiles(TOKENS)
  work = sizes_of(chip, case)
  if case.kind == "block":
    plan = BlockPlan.largest(work, case.num_reads, 0.0)
    return None if plan is None else plan.tiles
  return tiles.choose(work)


def _row_groups_at_once(chip: str, case: KernelCase, sizes: TpuTiles) -> int:
  """Returns how many groups of tokens one round of the inner loop handles."""
  if case.kind != "direct":
    return 1
  return DirectPlan(sizes_of(chip, case), sizes, 0.0, 0.0).row_groups_at_once


def count_bundles(lines: Iterable[str]) -> tuple[int, int]:
  """Returns how many bundles of a grid step are outside of inner loops, and how many inside.

  Every bundle is on a line `address label: > {...}` with one `>` for each loop around it. Bundles
  that a branch may skip count, unless they only clear memory, which happens once or never.
  """
  bundles = [(len(match[2]), match.string) for match in map(_BUNDLE.match, lines) if match]
  runs = itertools.groupby(bundles, lambda b: b[0] == 1 and set(_VECTOR.findall(b[1])) == {"vst"})
  lengths = [len(list(run)) for only_stores, run in runs if only_stores]
  clearing = sum(length for length in lengths if length >= _CLEARING)
  depths = [depth for depth, _ in bundles]
  return depths.count(1) - clearing, sum(depth > 1 for depth in depths)


def _shape(case: KernelCase) -> str:
  return f"T={case.num_tokens}, D={case.width}, N={case.num_slots}, {case.dtype}"


def _line(s: Schedule) -> str:
  return (
    f"{s.chip:5} {_kind(s.case):22} {s.tokens:4} tokens: {s.tile_bundles:6.0f} bundles "
    f"({s.row_group_bundles:.0f} per {ROWS}), {s.copy_cycles:7.0f} copy cycles, ratio {s.ratio:.2f}"
  )


def _kind(case: KernelCase) -> str:
  if case.kind == "block":
    return f"phase 1, S={case.num_reads}, {case.name}"
  if case.kind == "merge":
    return f"merge, {case.name}"
  return f"{case.name}, {'add + norm' if case.fused else 'mix'}"


def _plot(schedules: Sequence[Schedule], path: Path) -> None:
  chips = list(dict.fromkeys(s.chip for s in schedules))
  figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
  for index, case in enumerate(CASES):
    ratios = {s.chip: s.ratio for s in schedules if s.case == case}
    width = 0.8 / len(CASES)
    place = np.arange(len(chips)) + (index - (len(CASES) - 1) / 2) * width
    axes.bar(place, [ratios.get(chip, 0.0) for chip in chips], width, label=_kind(case))
  axes.axhline(1.0, color="black", linewidth=0.8)
  axes.set_xticks(range(len(chips)), chips)
  axes.set_ylabel("compute / copy cycles")
  axes.set_title(_shape(CASES[0]))
  figure.legend(fontsize="small", loc="outside right center")
  figure.savefig(path, dpi=150)
  plt.close(figure)


if __name__ == "__main__":  # one kernel, in the process that `measure` starts
  _chip, _case, _sizes = json.loads(sys.argv[1])
  compile_kernel(_chip, KernelCase(**_case), TpuTiles(**_sizes))
