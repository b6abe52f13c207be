"""Measures what a GPU is needed for, the most important first, in the minutes that there are.

  resjax bench gpu_day --minutes=9             (one NVIDIA GPU of 80 GB)
  resjax bench gpu_day --minutes=4             (goes on: what is ok is not measured again)
  resjax bench gpu_day --only=block,D=2048     (the arms with these words in their names)
  resjax bench gpu_day --minutes=0             (prints what is there)
  resjax bench gpu_day --dry_run               (tiny arms of the same kinds, on a CPU)

In this order: every kernel against the reference in float64 at two shapes; the training step of
124M parameters with standard and with block_attn_res, and their kernels; a read beside a copy and
fla-core; mhc; and what the time is left for. Arms share a process, until one of them ends it.
--out gets gpu_day.json, which is complete whenever the command is stopped, gpu_day.log, and at the
end gpu_day.png. The last thing printed is what was reached of each goal, see docs/gpu.md.
"""

import dataclasses
import gc
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
from absl import flags

from launch.bench import arms, correctness, gpu_goals, supervisor, timed_step
from launch.bench.kernels import arg_specs, bench_table, suites
from launch.bench.supervisor import Arm, Record
from resjax.base.processes import stop_at_once
from resjax.cli import command

_MINUTES = flags.DEFINE_float(
  "minutes", 9.0, "Minutes of everything, the start of Python included.", lower_bound=0.0
)
_ONLY = flags.DEFINE_list("only", [], "Words that the name of an arm must have, several by commas.")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Run tiny arms on the CPU, to try the command out.")
_OUT = flags.DEFINE_string("out", "runs/gpu_day", "Folder of the results.")
_WORKER = flags.DEFINE_bool("worker", False, "Measure the arms in this very process.")

_BEGIN = time.monotonic()
_LAST = 8.0  # seconds in which a process is ended, and the table and the plot are made

# JAX leaves memory for torch, and a process finds what the one before it has compiled.
ENVIRONMENT = {
  "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
  "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9",
  "TF_CPP_MIN_LOG_LEVEL": "1",
  "JAX_COMPILATION_CACHE_DIR": str(Path(tempfile.gettempdir()) / "resjax_gpu_day"),
}
DRY_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}


def gpu_arms() -> list[Arm]:
  """Returns the arms for a GPU."""
  first = [_right(case) for case in correctness.first_cases()]
  step = _steps(gpu_goals.MODEL, 128, 2)
  large = _steps("llama_1p3b", 32, 4)
  return [
    *first,
    step("standard"),
    step("standard", "block_attn_res"),
    *(
      _kernels("read", gpu_goals.READ, name) for name in ("direct", *gpu_goals.FLA, "xla_no_stack")
    ),
    _steps(gpu_goals.MODEL, 128, 4, remat="none")("standard"),
    step("standard", "mhc"),
    *(_kernels("streams", gpu_goals.STREAMS, name) for name in ("direct", "xla_no_stack")),
    *(_kernels("block", gpu_goals.READ, name) for name in ("two_phase", "direct", "residual_norm")),
    large("standard"),
    large("standard", "block_attn_res"),
    _kernels("read", gpu_goals.READ, "liger"),
    *(_kernels("read", "8192x7168x9", name) for name in ("direct", *gpu_goals.FLA)),
    *(_kernels("network", "32x8x16384x2048", name) for name in ("two_phase", "residual_norm")),
    *(_kernels("network", "32x8x65536x2048", name) for name in ("flash_attn_res", "two_phase")),
    *map(_right, correctness.cases()[len(first) :]),
  ]


def dry_arms() -> list[Arm]:
  """Returns tiny arms of the same kinds for a CPU; the kernels run in the interpreter of JAX."""
  cases = [case for case in correctness.cases() if case.tokens <= correctness.SMALL]
  read, network = "32x128x2", "2x2x32x128"
  step = _steps("tiny", 1, 1, steps=1, repeats=2)
  chosen = [
    *(_right(case, again=1, interpret=True) for case in cases[:2]),
    step("standard"),
    step("standard", "block_attn_res"),
    *(
      _kernels("read", read, name, repeats=2) for name in ("direct", *gpu_goals.FLA, "xla_no_stack")
    ),
    step("standard", "mhc"),
    _kernels("streams", read, "direct", repeats=2),
    _kernels("block", read, "two_phase", repeats=2),
    _kernels("network", network, "two_phase", repeats=2),
    _kernels("network", network, "flash_attn_res", repeats=2),
    *(_right(case, again=1, interpret=True) for case in cases[2:]),
  ]
  return [dataclasses.replace(arm, deadline=300.0) for arm in chosen]


def _right(case: correctness.Case, again: int = 10, interpret: bool = False) -> Arm:
  """Returns the arm that compares a kernel with the reference in float64."""
  return Arm(gpu_goals.RIGHT + str(case), lambda: correctness.check(case, again, interpret), 90)


def _steps(
  model: str, rows: int, microbatches: int, steps: int = 3, repeats: int = 8, remat: str = ""
) -> Callable[..., Arm]:
  """Returns a function that returns the arm of the steps of several systems, in turn."""

  def arm(*residuals: str) -> Arm:
    def measure() -> dict[str, Any]:
      configs = {name: timed_step.config_of(model, name) for name in residuals}
      for config in configs.values():
        config.model.remat = remat or config.model.remat
      runs = {n: timed_step.with_batch(c, rows, microbatches) for n, c in configs.items()}
      return timed_step.compare(runs, steps, repeats)

    return Arm(gpu_goals.step_name(model, residuals, remat), measure, 60 + 60 * len(residuals))

  return arm


def _kernels(suite: str, shape: str, name: str, repeats: int = 10) -> Arm:
  """Returns the arm that times one form of a suite beside a copy."""

  def measure() -> dict[str, Any]:
    parsed: Any = (arg_specs.parse_network if suite == "network" else arg_specs.parse_read)(shape)
    if suite == "block":
      parsed = arg_specs.block_of(parsed)
    records = [record for found in suites.run(suite, parsed, [name], repeats) for record in found]
    problems = [f"{r['direction']}: {r['status']}" for r in records if r["status"] != arms.OK]
    return {"status": problems[0] if problems else arms.OK, "records": records}

  return Arm(gpu_goals.kernel_name(suite, shape, name), measure, 100)


def main() -> None:
  """Measures the arms that the flags ask for.

  Raises:
    ValueError: no arm has all the words of --only.
  """
  every = dry_arms() if _DRY_RUN.value else gpu_arms()
  chosen = [arm for arm in every if all(word in arm.name for word in _ONLY.value)]
  if not chosen:
    raise ValueError(f"--only={','.join(_ONLY.value)}: no arm has these words in its name")
  out = Path(_OUT.value)
  report, log = out / "gpu_day.json", out / "gpu_day.log"
  if _WORKER.value:
    supervisor.work(chosen, report, about(), settle)
    return
  environment = {**ENVIRONMENT, **os.environ, **(DRY_ENVIRONMENT if _DRY_RUN.value else {})}
  command = [sys.executable, "-m", "resjax", "bench", "gpu_day", *sys.argv[1:], "--worker"]
  left = 60 * _MINUTES.value - _LAST - (time.monotonic() - _BEGIN)
  try:
    with stop_at_once():
      if left > 0:
        supervisor.supervise(chosen, command, report, log, left, environment, _tell)
  finally:
    content = supervisor.read(report)
    print(gpu_goals.table(content), flush=True)
  if records := [
    record for found in content["arms"].values() for record in found.get("records", ())
  ]:
    bench_table.plot(records, content["about"]["device"], out / "gpu_day.png")


def about() -> dict[str, str]:
  """Returns device and versions of this process, for records."""
  device = jax.devices()[0]
  return {
    "device": device.device_kind,
    "platform": device.platform,
    "jax": jax.__version__,
    "python": platform.python_version(),
  }


def settle() -> bool:
  """Frees the memory of an arm, and returns whether the device still answers."""
  try:
    gc.collect()
    jax.clear_caches()
    if torch := sys.modules.get("torch"):
      torch.cuda.empty_cache()
    jax.block_until_ready(jax.device_put(1.0) + 1)
  except Exception:
    return False
  return True


def _tell(name: str, record: Record) -> None:
  line = f"{record.get('seconds', 0):7.1f} s  {name}: {record['status']}"
  print(", ".join([line, *_figures(record)]), flush=True)


def _figures(record: Record) -> Iterator[str]:
  """Yields the most important figures of an arm."""
  for key in ("out_error", "grad_error"):
    if key in record:
      yield f"{key} {record[key]:.1e}" if isinstance(record[key], float) else f"{key} {record[key]}"
  for row in record.get("records", []):
    if "median_ms" in row and row["arm"] != suites.COPY:
      share = f" ({row['share_of_copy']:.0%} of a copy)" if "share_of_copy" in row else ""
      yield f"{row['direction']} {row['median_ms']:.3g} ms{share}"
  for name, case in record.get("cases", {}).items():
    mfu = "" if case["mfu"] is None else f" (MFU {case['mfu']:.1%})"
    yield f"{name} {case['median_ms']:.4g} ms{mfu}"
    for kernel in case.get("kernels", [])[:3]:
      yield f"{kernel['share']:.0%} {kernel['kernel'][:40]}"
  yield from (
    f"{key} {value:.4f}" for key, value in record.items() if key.endswith("over standard")
  )


if __name__ == "__main__":
  command.run(main)
