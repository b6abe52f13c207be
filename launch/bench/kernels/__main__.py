"""Times depth attention, and what competes with it, on the device at hand.

  python -m launch.bench kernels --out runs/bench

writes bench.json and bench.png into --out. Two further measurements need no accelerator:
  --network-bytes   memory traffic of a whole residual network, as the compiler reports it
  --tpu-schedule    compute and memory cycles of the TPU kernels, from the compiler's schedule
Both compile for TPUs that need not be there, and need the extra `tpu`.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import jax

from launch.bench.kernels import arg_specs, bench_table, suites
from resjax.hardware.chips import TPU_CHIPS

CHIPS = [*TPU_CHIPS, "cpu"]


class _Parser(argparse.ArgumentParser):
  """Reports mistakes in one line."""

  def error(self, message: str) -> NoReturn:
    self.exit(1, f"error: {message}\n")


def _parse(argv: list[str] | None) -> argparse.Namespace:
  parser = _Parser(prog="python -m launch.bench kernels", description=__doc__,
                   formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
  add = parser.add_argument
  add("--out", type=Path, default=Path("runs/bench"), help="folder of the results")
  names = list(suites.SUITES)
  add("--suites", type=_names(names), default=names, help=f"suites to run: {', '.join(names)}")
  arms = suites.arm_names()
  add("--arms", type=_names(arms), default=arms, help=f"arms to run: {', '.join(arms)}")
  add("--shapes", type=_shapes(arg_specs.parse_read), help="reads and blocks, TxDxN,TxDxN,...")
  add(
    "--networks",
    type=_shapes(arg_specs.parse_network),
    help="networks, LxSxTxD,...: L sublayers, S of them in a depth block",
  )
  add("--repeats", type=_positive, default=20, help="number of samples of every arm")
  add("--network-bytes", action="store_true", help="see above")
  add("--tpu-schedule", action="store_true", help="see above")
  add(
    "--chips",
    type=_names(CHIPS),
    help=f"what to compile for, of {', '.join(CHIPS)}; default: all TPUs, with --network-bytes v5e",
  )
  return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
  """Runs the measurements that the flags ask for; a mistake ends it with one line."""
  try:
    _run(_parse(argv))
  except ValueError as mistake:
    sys.exit(f"error: {mistake}")


def _run(flags: argparse.Namespace) -> None:
  if flags.tpu_schedule:
    from launch.bench.kernels import tpu_schedule

    tpu_schedule.main(flags.out, flags.chips or list(TPU_CHIPS))
  if flags.network_bytes:
    from launch.bench.kernels import network_bytes

    shape = flags.networks[0] if flags.networks else arg_specs.BYTES_NETWORK
    shape = dataclasses.replace(shape, normed=True)
    for chip in flags.chips or ["v5e"]:
      network_bytes.main(flags.out, chip, network_bytes.target(chip), shape, flags.arms)
  if not flags.tpu_schedule and not flags.network_bytes:
    _measure(flags)


def _measure(flags: argparse.Namespace) -> None:
  """Runs the suites, prints a table for each shape, and writes all results so far after each."""
  # This leaves memory for torch. JAX reads it when it is first asked for a device.
  os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
  device = jax.devices()[0]
  small = device.platform == "cpu"
  shapes = flags.shapes or (arg_specs.SMALL_READS if small else arg_specs.READS)
  networks = flags.networks or [arg_specs.SMALL_NETWORK if small else arg_specs.NETWORK]
  title = f"{device.device_kind}, JAX {jax.__version__}, {flags.repeats} samples each"
  if small:
    title += "; a trial on a CPU, which says nothing about the kernels"
  print(title)
  todo = {"read": shapes, "block": [arg_specs.block_of(s) for s in shapes], "network": networks}
  about = {"device": device.device_kind, "platform": device.platform, "jax": jax.__version__}
  records = []
  for suite in flags.suites:
    for shape in todo[suite]:
      found = suites.run(suite, shape, flags.arms, flags.repeats)
      print(f"\n{suite} {shape}\n{bench_table.table(found)}", flush=True)
      records += found
      _write(flags.out, about, records, title)


def _write(out: Path, about: dict, records: list, title: str) -> None:
  out.mkdir(parents=True, exist_ok=True)
  bench_table.plot(records, title, out / "bench.png")
  content = json.dumps(about | {"command": sys.argv[1:], "records": records}, indent=1)
  (out / "bench.json").write_text(content)


def _positive(text: str) -> int:
  if not text.isdigit() or int(text) < 1:
    raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
  return int(text)


def _names(allowed: list[str]) -> Callable[[str], list[str]]:
  def parse(text: str) -> list[str]:
    unknown = [name for name in text.split(",") if name not in allowed]
    if unknown:
      raise argparse.ArgumentTypeError(f"{unknown[0]!r} is unknown; allowed: {', '.join(allowed)}")
    return text.split(",")

  return parse


def _shapes(parse_one: Callable[[str], Any]) -> Callable[[str], list]:
  def parse(text: str) -> list:
    try:
      return [parse_one(part) for part in text.split(",")]
    except ValueError as mistake:
      raise argparse.ArgumentTypeError(str(mistake)) from None

  return parse


if __name__ == "__main__":
  main()
