"""Times depth reads, residual streams, and what competes, on the device at hand.

  resjax bench kernels --out runs/bench

writes bench.json and bench.png into --out. Every arm has a process of its own, which ends after
--deadline seconds: what aborts or hangs costs no other arm. bench.json is written after each.
Three further measurements need no accelerator:
  --network-bytes   memory traffic of a whole residual network, as the compiler reports it
  --tpu-schedule    compute and memory cycles of the TPU kernels, from the compiler's schedule
  --gpu-compile     registers, spills and shared memory of the GPU kernels, from their machine code
They compile for chips that need not be there, and need the extra `tpu`, the last one `cuda_aot`.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import jax

from launch.bench import arms
from launch.bench.kernels import arg_specs, bench_table, suites
from resjax.base.hardware import GPU_TARGETS, TPU_CHIPS
from resjax.cli import command, help_text

CHIPS = [*TPU_CHIPS, *GPU_TARGETS, "cpu"]
_ABOUT = """
import jax, json
device = jax.devices()[0]
found = {"device": device.device_kind, "platform": device.platform, "jax": jax.__version__}
print(json.dumps(found))
"""


class _Parser(argparse.ArgumentParser):
  """Raises ValueError for mistakes."""

  def error(self, message: str) -> NoReturn:
    raise ValueError(message)


def _parse(argv: list[str]) -> argparse.Namespace:
  about = help_text.fitted(__doc__ or "")
  parser = _Parser(prog="resjax bench kernels", description=about,
                   formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
  add = parser.add_argument
  add("--out", type=Path, default=Path("runs/bench"), help="folder of the results")
  names = list(suites.SUITES)
  add("--suites", type=_names(names), default=names, help=f"suites to run: {', '.join(names)}")
  arms = suites.arm_names()
  add("--arms", type=_names(arms), default=arms, help=f"arms to run: {', '.join(arms)}")
  add("--shapes", type=_shapes(arg_specs.parse_read), help="reads, streams and blocks, TxDxN,...")
  add(
    "--networks",
    type=_shapes(arg_specs.parse_network),
    help="networks, LxSxTxD,...: L sublayers, S of them in a depth block",
  )
  add("--repeats", type=_positive, default=20, help="number of samples of every arm")
  add(
    "--deadline",
    type=_seconds,
    default=300,
    help="seconds of an arm at a shape, its compilation included; 0: no processes of their own",
  )
  add("--network-bytes", action="store_true", help="see above")
  add("--tpu-schedule", action="store_true", help="see above")
  add("--gpu-compile", action="store_true", help="see above")
  widths = [768, 2048, 4096, 7168]
  add("--widths", type=_shapes(int), default=widths, help="of --gpu-compile: D, several by commas")
  add(
    "--chips",
    type=_names(CHIPS),
    help=f"what to compile for, of {', '.join(CHIPS)}; default: all TPUs, with --network-bytes "
    "v5e, with --gpu-compile h100",
  )
  add("--debug", action="store_true", help="errors are reported with their traceback")
  return parser.parse_args(argv)


def main(argv: list[str]) -> None:
  """Runs the measurements that the flags ask for.

  Raises:
    ValueError: a flag is wrong, or what a measurement needs is missing.
  """
  flags = _parse(argv)
  if flags.tpu_schedule:
    from launch.bench.kernels import tpu_schedule

    tpu_schedule.main(flags.out, flags.chips or list(TPU_CHIPS))
  if flags.network_bytes:
    from launch.bench.kernels import network_bytes

    shape = flags.networks[0] if flags.networks else arg_specs.BYTES_NETWORK
    shape = dataclasses.replace(shape, normed=True)
    for chip in flags.chips or ["v5e"]:
      network_bytes.main(flags.out, chip, network_bytes.target(chip), shape, flags.arms)
  if flags.gpu_compile:
    from launch.bench.kernels import gpu_compile

    gpu_compile.main(flags.out, flags.chips or ["h100"], flags.widths)
  if not (flags.tpu_schedule or flags.network_bytes or flags.gpu_compile):
    _measure(flags)


def _measure(flags: argparse.Namespace) -> None:
  """Runs the suites; prints a table for each shape, and writes all results after each arm."""
  # This leaves memory for torch. JAX reads it when it is first asked for a device.
  os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
  about = _about(isolated=flags.deadline > 0)
  small = about["platform"] == "cpu"
  shapes = flags.shapes or (arg_specs.SMALL_READS if small else arg_specs.READS)
  streams = flags.shapes or (arg_specs.SMALL_STREAM_READS if small else arg_specs.STREAM_READS)
  networks = flags.networks or [arg_specs.SMALL_NETWORK if small else arg_specs.NETWORK]
  title = f"{about['device']}, JAX {about['jax']}, {flags.repeats} samples each"
  if small:
    title += "; a trial on a CPU, which says nothing about the kernels"
  print(title)
  blocks = [arg_specs.block_of(s) for s in shapes]
  todo = {"read": shapes, "streams": streams, "block": blocks, "network": networks}
  records: list[suites.Record] = []
  for suite in flags.suites:
    for shape in todo[suite]:
      found: list[suites.Record] = []
      measured = _isolated if flags.deadline else _together
      for group in measured(suite, shape, flags):
        found += group
        _write(flags.out, about, records + found, title)
      records += found
      print(f"\n{suite} {shape}\n{bench_table.table(found)}", flush=True)


def _about(isolated: bool) -> dict[str, str]:
  """Returns what runs here.

  Args:
    isolated: whether another process shall ask, because arms need the devices for themselves.

  Raises:
    ValueError: a process that asks JAX for its device fails.
  """
  if not isolated:
    device = jax.devices()[0]
    return {"device": device.device_kind, "platform": device.platform, "jax": jax.__version__}
  done = subprocess.run([sys.executable, "-c", _ABOUT], capture_output=True, text=True, check=False)
  if done.returncode:
    raise ValueError(f"JAX finds no device: {done.stderr.strip().splitlines()[-1:]}")
  return json.loads(done.stdout.splitlines()[-1])


def _together(suite: str, shape: Any, flags: argparse.Namespace) -> Iterator[list[suites.Record]]:
  """Yields the records of all arms of a shape, in this process, direction by direction."""
  yield from suites.run(suite, shape, flags.arms, flags.repeats)


def _isolated(suite: str, shape: Any, flags: argparse.Namespace) -> Iterator[list[suites.Record]]:
  """Yields the records of one arm of a shape after the other, each from a process of its own.

  Every process measures the copy beside its arm, and has its share of that. The first copy counts
  for the table.
  """
  names = [*suites.SUITES[suite].names, *suites.SUITES[suite].torch_arms]
  kept_copy = False
  for name in (name for name in names if name in flags.arms):
    with tempfile.TemporaryDirectory() as folder:
      out, log = Path(folder), Path(folder) / "log"
      status = arms.run(_command(suite, shape, name, flags.repeats, out), log, flags.deadline)
      path = out / "bench.json"
      found = json.loads(path.read_text())["records"] if path.exists() else []
    copies = [record for record in found if record["arm"] == suites.COPY]
    found = [record for record in found if record["arm"] == name]
    for direction in suites.SUITES[suite].directions:
      if direction not in {record["direction"] for record in found}:
        problem = "its process gave no result" if status == arms.OK else status
        found.append(suites.unmeasured(suite, shape, name, direction, problem))
    yield found if kept_copy else [*copies, *found]
    kept_copy |= len(copies) == len(suites.SUITES[suite].directions)


def _command(suite: str, shape: Any, name: str, repeats: int, out: Path) -> list[str]:
  """Returns the command that measures one arm at one shape."""
  kind = "--networks" if suite == "network" else "--shapes"
  if suite == "block":  # its shape follows from that of a read
    shape = arg_specs.read_of(shape)
  return [
    sys.executable, "-m", "resjax", "bench", "kernels", "--deadline=0", f"--suites={suite}",
    f"--arms={name}", f"{kind}={shape}", f"--repeats={repeats}", f"--out={out}",
  ]  # fmt: skip


def _write(out: Path, about: dict, records: list, title: str) -> None:
  out.mkdir(parents=True, exist_ok=True)
  bench_table.plot(records, title, out / "bench.png")
  content = json.dumps(about | {"command": sys.argv[1:], "records": records}, indent=1)
  (out / "bench.json").write_text(content)


def _seconds(text: str) -> float:
  try:
    seconds = float(text)
  except ValueError:
    seconds = -1.0
  if not seconds >= 0:
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
  return seconds


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
  command.run_words(main)
