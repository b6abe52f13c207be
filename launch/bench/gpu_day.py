"""Measures all that a GPU is needed for, in five stages of at most nine minutes.

  resjax bench gpu_day                     (all stages; one GPU of 80 GB)
  resjax bench gpu_day --stages=1          (one stage per command, where those are short)
  resjax bench gpu_day --dry_run           (the same arms, tiny, on a CPU)

  1  correctness   every kernel against the reference in float64
  2  bandwidth     reads, streams, depth blocks, a network: their share of the bandwidth of a copy
  3  peers         fla-core, liger-kernel and flash-attn-res beside ours, by the same timer
  4  step          the training step of 124M and 1.35B parameters: standard, block_attn_res, mhc
  5  killed        a killed run of 124M parameters ends in the same bits as one that went through

Every arm is a process with a deadline. --out gets gpu_day.json, written after each arm, and a
folder per arm with its log and results. An arm that fails, is killed, or finds no time left costs
no other one; it is listed with its reason. The exit code is 0 once every arm has a record.
"""

import dataclasses
import json
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import flags

from launch import cli
from launch.bench import arms

STAGES = ("correctness", "bandwidth", "peers", "step", "killed")
BUDGET = 540.0  # seconds of a stage
_LEAST = 20.0  # seconds that must be left for an arm to begin

_NUMBERS = [str(number) for number in range(1, len(STAGES) + 1)]
_CHOSEN = flags.DEFINE_list("stages", _NUMBERS, "Numbers of stages, several by commas.")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Run tiny arms on the CPU, to try the command out.")
_BUDGET = flags.DEFINE_float("budget", BUDGET, "Seconds of a stage.", lower_bound=0.0)
_OUT = flags.DEFINE_string("out", "runs/gpu_day", "Folder of the results.")

# JAX takes more of the memory than by default, and keeps what it has compiled.
ENVIRONMENT = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9", "TF_CPP_MIN_LOG_LEVEL": "1"}
DRY_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}


@dataclasses.dataclass(frozen=True)
class Arm:
  """One process of a stage.

  Attributes:
    stage: one of `STAGES`.
    name: its name, which no other arm has.
    words: the arguments of Python, in which `{out}` stands for the folder of the arm.
    deadline: seconds.
    result: the file in its folder that it writes.
    environment: variables of the process beside those of all arms.
  """

  stage: str
  name: str
  words: tuple[str, ...]
  deadline: float
  result: str
  environment: dict[str, str] = dataclasses.field(default_factory=dict)


def _bench(what: str, *words: str) -> tuple[str, ...]:
  return "-m", "resjax", "bench", what, "--out={out}", *words


def _kernels(stage: str, suite: str, shape: str, name: str, deadline: float, *more: str) -> Arm:
  """Returns the arm that times one form of a suite at one shape, beside a copy."""
  kind = "--networks" if suite == "network" else "--shapes"
  words = _bench("kernels", "--deadline=0", f"--suites={suite}", f"--arms={name}")
  label = f"{stage}_{suite}_{shape}_{name}"
  environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # torch needs memory too
  words = (*words, f"{kind}={shape}", *more)
  return Arm(stage, label, words, deadline, "bench.json", environment)


def gpu_arms() -> Iterator[Arm]:
  """Yields the arms for a GPU, those whose results decide about others first."""
  words = _bench("correctness", "--budget=500", "--deadline=60")
  yield Arm("correctness", "correctness", words, 530, "correctness.json")
  for shape in ("8192x2048x8", "32768x4096x10", "8192x7168x9"):
    for name in ("direct", "xla_no_stack"):
      yield _kernels("bandwidth", "read", shape, name, 100, "--repeats=10")
  for name in ("direct", "xla_no_stack"):
    yield _kernels("bandwidth", "streams", "8192x2048x4", name, 100, "--repeats=10")
  for suite, shape in (("block", "8192x2048x8"), ("network", "32x8x16384x2048")):
    for name in ("two_phase", "direct", "residual_norm"):
      yield _kernels("bandwidth", suite, shape, name, 150, "--repeats=10")
  for name in ("fla_checkpoint_0", "fla_checkpoint_1", "liger", "direct"):
    for shape in ("8192x2048x8", "8192x7168x9"):
      yield _kernels("peers", "read", shape, name, 90, "--repeats=10")
  for name in ("flash_attn_res", "two_phase"):
    yield _kernels("peers", "network", "32x8x65536x2048", name, 200, "--repeats=5")
  # The run of `standard` alone stays if the kernels fail; the one of both has their ratio.
  sizes = {
    "gpt2_124m": ("--rows=128", "--microbatches=2"),
    "llama_1p3b": ("--rows=32", "--microbatches=4"),
  }
  for model, rows in sizes.items():
    for residuals, deadline in (("standard", 120), ("standard,block_attn_res", 330)):
      words = _bench("step", f"--model={model}", f"--residuals={residuals}", *rows, "--repeats=8")
      name = f"step_{model}_{residuals.replace(',', '_')}"
      yield Arm("step", name, words, deadline, "bench_step.json")
  words = _bench("step", "--model=gpt2_124m", "--residuals=standard,mhc", *sizes["gpt2_124m"])
  words = (*words, "--repeats=8")
  yield Arm("step", "step_gpt2_124m_standard_mhc", words, 330, "bench_step.json")
  train = (
    "--config=gpt2_124m:block_attn_res",
    "--config.data.corpora.web.source=python-stdlib", "--config.data.corpora.web.format=auto",
    "--config.data.tokenizer.train_bytes=20000000", "--config.mesh.fsdp=1",
    "--config.train.batch_size=32", "--config.train.microbatches=1", "--config.train.eval_rows=8",
  )  # fmt: skip
  words = _bench("train", "--steps=0", "--", *train)
  yield Arm("killed", "killed_124m", words, 530, "bench_train.json")


def dry_arms() -> Iterator[Arm]:
  """Yields arms of the same commands that a CPU can run in a minute or two."""
  words = _bench("correctness", "--interpret", "--again=1", "--only=T=5,float32,direct")
  yield Arm("correctness", "correctness", words, 300, "correctness.json")
  few = ("--repeats=2",)
  yield _kernels("bandwidth", "read", "32x128x2", "direct", 200, *few)
  yield _kernels("bandwidth", "streams", "32x128x2", "direct", 200, *few)
  yield _kernels("bandwidth", "network", "2x2x32x128", "two_phase", 200, *few)
  for name in ("fla_checkpoint_0", "liger"):
    yield _kernels("peers", "read", "32x128x2", name, 200, *few)
  yield _kernels("peers", "network", "2x2x32x128", "flash_attn_res", 200, *few)
  tiny = ("--layers=2", "--layers_per_block=1", "--d_model=128", "--rows=1", "--seq_len=32")
  words = _bench("step", *tiny, "--repeats=2", "--steps=1")
  yield Arm("step", "step_tiny", words, 200, "bench_step.json")
  train = (
    "--config=tiny", "--config.model.num_layers=2", "--config.model.d_model=32",
    "--config.model.num_heads=2", "--config.model.num_kv_heads=2", "--config.model.mlp_dim=64",
    "--config.data.root={out}/data", "--config.data.seq_len=32",
    "--config.data.tokenizer.name=byte", "--config.train.batch_size=4",
    "--config.train.eval_rows=4",
  )  # fmt: skip
  words = _bench("train", "--steps=0", "--", *train)
  yield Arm("killed", "killed_tiny", words, 300, "bench_train.json")


def main() -> None:
  """Runs the arms of the stages that the flags ask for.

  Raises:
    ValueError: there is no such stage.
  """
  unknown = [number for number in _CHOSEN.value if number not in _NUMBERS]
  if unknown:
    raise ValueError(f"--stages={unknown[0]}: allowed are {', '.join(_NUMBERS)}")
  stages = [STAGES[int(number) - 1] for number in _CHOSEN.value]
  chosen = [arm for arm in (dry_arms() if _DRY_RUN.value else gpu_arms()) if arm.stage in stages]
  environment = ENVIRONMENT | (DRY_ENVIRONMENT if _DRY_RUN.value else {})
  records = run(chosen, Path(_OUT.value), _BUDGET.value, environment)
  failed = [record for record in records if record["status"] != arms.OK]
  print(f"{len(records)} arms, {len(failed)} not well: {Path(_OUT.value) / 'gpu_day.json'}")


def run(
  chosen: list[Arm], out: Path, budget: float, environment: dict[str, str]
) -> list[dict[str, Any]]:
  """Runs arms one after the other, and writes gpu_day.json after each.

  Args:
    chosen: the arms, stage by stage.
    out: folder of the results. Records of other arms that it has from an earlier call stay.
    budget: seconds of a stage.
    environment: variables of all processes.

  Returns:
    One record per arm, also for those that have failed or found no time left.
  """
  out.mkdir(parents=True, exist_ok=True)
  begins: dict[str, float] = {}
  cache = {"JAX_COMPILATION_CACHE_DIR": str(out.absolute() / "compiled")}
  records = []
  for arm in chosen:
    begins.setdefault(arm.stage, time.monotonic())
    left = budget - (time.monotonic() - begins[arm.stage])
    records.append(_run(arm, out.absolute() / arm.name, left, cache | environment))
    _write(out / "gpu_day.json", records)
    print(_line(records[-1]), flush=True)
  return records


def _run(arm: Arm, folder: Path, left: float, environment: dict[str, str]) -> dict[str, Any]:
  """Runs one arm, and returns its record with what it has written."""
  record: dict[str, Any] = {"stage": arm.stage, "arm": arm.name}
  if left < _LEAST:
    return record | {"status": "no time left in its stage", "seconds": 0.0, "result": None}
  folder.mkdir(parents=True, exist_ok=True)
  result, log = folder / arm.result, folder / "log"
  result.unlink(missing_ok=True)  # of an earlier call
  command = [sys.executable, *(word.replace("{out}", str(folder)) for word in arm.words)]
  outcome = arms.run(command, log, min(arm.deadline, left), environment | arm.environment)
  record |= {"status": outcome.status, "seconds": outcome.seconds, "command": command}
  found = None
  if result.exists():
    try:
      found = json.loads(result.read_text())
    except ValueError:  # it was killed while it wrote
      record["status"] = f"{outcome.status}; its result is cut off"
  elif outcome.ok:
    record["status"] = f"it has written no {arm.result}"
  if record["status"] != arms.OK:
    record["log"] = arms.tail(log, 20)
  return record | {"result": found}


def _write(path: Path, records: list[dict]) -> None:
  """Writes all records; the file is replaced at once, so that it is complete at any time."""
  own = {record["arm"] for record in records}
  before = json.loads(path.read_text())["arms"] if path.exists() else []
  kept = [record for record in before if record["arm"] not in own]
  content = {"python": platform.python_version(), "arms": kept + records}
  draft = path.with_suffix(".draft")
  draft.write_text(json.dumps(content, indent=1))
  draft.replace(path)


def _line(record: dict[str, Any]) -> str:
  """Returns a line about an arm, with the figures that a reader looks for first."""
  start = f"{record['stage']:12}{record['arm']:48}{record['seconds']:7.1f} s  {record['status']}"
  return "  ".join([start, ", ".join(_figures(record["result"] or {}))]).rstrip()


def _figures(result: dict[str, Any]) -> Iterator[str]:
  """Yields the most important figures of what a benchmark has written."""
  for row in result.get("records", []):
    if "median_ms" in row and row["arm"] != "copy":
      share = f", {row['share_of_copy']:.0%} of a copy" if "share_of_copy" in row else ""
      yield f"{row['direction']} {row['median_ms']:.3g} ms{share}"
    elif row["status"] != arms.OK:
      yield f"{row.get('direction') or row.get('case')}: {row['status']}"
  for name, case in result.get("cases", {}).items():
    mfu = "" if case["mfu"] is None else f", MFU {case['mfu']:.1%}"
    yield f"{name} {case['median_ms']:.4g} ms{mfu}"
  if "block_attn_res over standard" in result:
    yield f"ratio {result['block_attn_res over standard']:.4f}"
  if "killed" in result:
    killed = result["killed"]
    yield f"same losses {killed['same_losses']}, same state {killed['same_state']}"


if __name__ == "__main__":
  cli.run(main)
