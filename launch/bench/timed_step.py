"""Training steps on random tokens: how long several take in turn, and their kernels."""

import importlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from launch.bench import plain_decoder
from launch.bench.kernels import timing
from resjax.combinators import Combinator
from resjax.models import training_flops_per_token
from resjax.train import experiment, init_state, metrics, program
from resjax.train.runs import Run

PLAIN = "plain"  # no combinator, but the decoder of launch/bench/plain_decoder.py
_NAMED = 120  # characters of a kernel's name that are kept
_MOST = 60  # kernels of a step that are listed
_UNITS = {"median_ms": "", "core_ms": ", time of cores"}


def config_of(model: str, residual: str) -> ConfigDict:
  """Returns the config of configs/MODEL.py with another combinator, on all devices here."""
  config = importlib.import_module(f"configs.{model}").get_config()
  config.model.residual.name = "standard" if residual == PLAIN else residual
  config.mesh.update(data=-1, fsdp=1)
  return config


def with_batch(config: ConfigDict, rows: int, microbatches: int) -> Run:
  """Returns the run of a config with batches of some rows."""
  config.train.update(batch_size=rows, microbatches=microbatches)
  return experiment.build(config)


def compare(runs: Mapping[str, Run], steps: int, repeats: int) -> dict[str, Any]:
  """Times the steps of several systems in turn, with all models in memory.

  Args:
    runs: the runs by the names of their combinators.
    steps: how many consecutive steps a sample takes the mean of, which hides their launches.
    repeats: number of samples of each.

  Returns:
    Milliseconds of the clock and of all cores, and MFU of each, on a GPU its kernels, and the
    ratios of each other one to `standard`.
  """
  launchers, facts = {}, {}
  for name, run in runs.items():
    launchers[name], facts[name] = (_plain if name == PLAIN else _stepper)(run)
  cores: dict[str, list[float]] = {name: [] for name in runs}
  samplers = {n: timing.wall(step, steps, cores[n]) for n, step in launchers.items()}
  found = timing.interleaved(samplers, repeats)
  cases = {name: timing.summary(seconds) for name, seconds in found.items()}
  for name, case in cases.items():
    rate = facts[name]["tokens"] / case["median_ms"] * 1e3
    case |= {"tokens_per_second": rate, "mfu": _mfu(facts[name]["flops_per_token"], rate)}
    case["core_ms"] = timing.summary(cores[name])["median_ms"]
    if jax.default_backend() == "gpu":
      case |= _kernels(launchers[name])
  report = {"parameters": {n: fact["parameters"] for n, fact in facts.items()}, "cases": cases}
  others = cases.keys() - {"standard"} if "standard" in cases else ()
  for name, (unit, words) in itertools.product(sorted(others), _UNITS.items()):
    report[f"{name} over standard{words}"] = cases[name][unit] / cases["standard"][unit]
  return report


def _kernels(step: Callable[[], Any]) -> dict[str, Any]:
  """Returns the kernels of one step that take the longest, or why CUPTI does not see them."""
  try:
    seen = timing.kernel_times(step)
  except RuntimeError as problem:
    return {"kernels": [], "no_kernels": str(problem)}
  total, calls, times = sum(ms for _, ms in seen), Counter[str](), defaultdict[str, float](float)
  for name, ms in seen:
    calls[name] += 1
    times[name] += ms
  listed = [
    {"kernel": name[:_NAMED], "calls": calls[name], "ms": ms, "share": ms / total}
    for name, ms in sorted(times.items(), key=lambda item: item[1], reverse=True)[:_MOST]
  ]
  return {"kernel_ms": total, "launches": len(seen), "names": len(times), "kernels": listed}


def _mfu(flops_per_token: float, tokens_per_second: float) -> float | None:
  peak = metrics.peak_flops(jax.devices()[0].device_kind, "bfloat16")
  return metrics.mfu(flops_per_token, tokens_per_second, peak and peak * jax.device_count())


def _stepper(run: Run) -> tuple[Callable[[], Any], dict[str, float]]:
  """Returns a function that launches a compiled step, and facts about the model."""
  programs = program.build(run)
  model = programs.model
  state = init_state(model, programs.optimizer, seed=0)
  batch = run.layout.put(_random_batch(run), run.train.batch_size)

  def step() -> Any:
    nonlocal state
    state, metrics = programs.train_step(state, batch)
    return state, metrics

  return step, _facts(run, model.combinator, sum(leaf.size for leaf in model.leaves()))


def _plain(run: Run) -> tuple[Callable[[], Any], dict[str, float]]:
  """Returns what `_stepper` does, of the plain decoder with the sizes of a `standard` one."""
  batch = jax.tree.map(jax.numpy.asarray, _random_batch(run))
  step, parameters = plain_decoder.stepper(run, batch["inputs"], batch["targets"])
  return step, _facts(run, program.build(run).model.combinator, parameters)


def _facts(run: Run, combinator: Combinator, parameters: int) -> dict[str, float]:
  return {
    "parameters": parameters,
    "tokens": run.train.batch_size * run.data.seq_len,
    "flops_per_token": training_flops_per_token(run.decoder, combinator, run.data.seq_len),
  }


def _random_batch(run: Run) -> dict[str, np.ndarray]:
  shape = run.train.batch_size, run.data.seq_len
  tokens = np.random.default_rng(0).integers(run.decoder.vocab_size, size=(2, *shape))
  inputs, targets = tokens.astype(np.int32)
  positions = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)
  rows = {"segment_ids": np.ones(shape, np.int32), "positions": positions}
  sizes = np.full(shape[0], shape[1], np.int32)  # of text, a byte for each token
  return {"inputs": inputs, "targets": targets, "bytes": sizes} | rows
