"""Times the training step of a decoder with standard and with other combinators, in turn.

  resjax bench step                                   (1.2B parameters, one 80 GB GPU)
  resjax bench step --model=gpt2_124m --rows=128 --microbatches=2
  resjax bench step --model=tiny --residuals=standard,mhc --rows=8    (a CPU)
  resjax bench step --layers=2 --d_model=128 --rows=1 --seq_len=64   (for trying it out)

A step is a forward pass, a reverse pass and the optimizer on random tokens: of a dense decoder with
the sizes of the flags, or of --model=NAME, the decoder of configs/NAME.py on one device. Both
models are in memory at once, unless --residuals names one. A sample is the wall time of `--steps`
consecutive steps over their number, which hides the time to launch them. The command prints one
JSON object, and writes it to --out.
"""

import importlib
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from ml_collections import ConfigDict

from configs import base
from launch import cli
from launch.bench.kernels import timing
from launch.bench.report import write_report
from resjax import experiment, metrics
from resjax.models.flops import training_flops_per_token
from resjax.runs.config import Run
from resjax.train import program
from resjax.train.state import init_state

DENSE = "dense"
_MODEL = flags.DEFINE_enum(
  "model", DENSE, [DENSE, "tiny", "gpt2_124m", "llama_1p3b"], "What is trained."
)
_RESIDUALS = flags.DEFINE_list("residuals", ["standard", "block_attn_res"], "Combinators.")
_MICROBATCHES = flags.DEFINE_integer("microbatches", 1, "Parts of a batch.", lower_bound=1)
_LAYERS = flags.DEFINE_integer("layers", 24, "Layers.", lower_bound=1)
_PER_BLOCK = flags.DEFINE_integer("layers_per_block", 3, "Layers of a depth block.", lower_bound=1)
_WIDTH = flags.DEFINE_integer("d_model", 2048, "Width; a multiple of 128.", lower_bound=128)
_ROWS = flags.DEFINE_integer("rows", 4, "Number of rows of a batch.", lower_bound=1)
_LENGTH = flags.DEFINE_integer("seq_len", 2048, "Number of tokens of a row.", lower_bound=2)
_REMAT = flags.DEFINE_enum("remat", "full", ["none", "full", "dots"], "What a layer recomputes.")
_STEPS = flags.DEFINE_integer("steps", 3, "Number of steps of a sample.", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 20, "Samples of each combinator.", lower_bound=1)
_OUT = flags.DEFINE_string("out", "runs/bench", "Folder to write bench_step.json to.")

HEAD = 128
_TOLD = (
  _MODEL, _LAYERS, _PER_BLOCK, _WIDTH, _ROWS, _MICROBATCHES, _LENGTH, _REMAT,
)  # fmt: skip


def main() -> None:
  """Prints milliseconds per step of each combinator, and their ratio."""
  samplers, facts = {}, {}
  for name in _RESIDUALS.value:
    samplers[name], facts[name] = _sampler(_run(name))
  found = timing.interleaved(samplers, _REPEATS.value)
  cases = {name: timing.summary(seconds) for name, seconds in found.items()}
  for name, case in cases.items():
    rate = facts[name]["tokens"] / case["median_ms"] * 1e3
    case |= {"tokens_per_second": rate, "mfu": _mfu(facts[name]["flops_per_token"], rate)}
  medians = {name: case["median_ms"] for name, case in cases.items()}
  report = {
    "device": jax.devices()[0].device_kind,
    "devices": jax.device_count(),
    "jax": jax.__version__,
    "flags": {flag.name: flag.value for flag in _TOLD},
    "parameters": {name: fact["parameters"] for name, fact in facts.items()},
    "cases": cases,
  }
  if "standard" in medians:
    others = {name: median for name, median in medians.items() if name != "standard"}
    report |= {
      f"{name} over standard": other / medians["standard"] for name, other in others.items()
    }
  write_report(report, _OUT.value, "bench_step.json")


def _mfu(flops_per_token: float, tokens_per_second: float) -> float | None:
  peak = metrics.peak_flops(jax.devices()[0].device_kind, "bfloat16")
  return metrics.mfu(flops_per_token, tokens_per_second, peak and peak * jax.device_count())


def _run(name: str) -> Run:
  if _MODEL.value != DENSE:
    config = importlib.import_module(f"configs.{_MODEL.value}").get_config()
    config.model.residual.name = name
    config.mesh.update(data=-1, fsdp=1)
  else:
    config = _dense(name)
  config.train.update(batch_size=_ROWS.value, microbatches=_MICROBATCHES.value)
  return experiment.build(config)


def _dense(name: str) -> ConfigDict:
  config = base.get_config()
  heads = _WIDTH.value // HEAD
  config.model.update(num_layers=_LAYERS.value, d_model=_WIDTH.value, num_heads=heads)
  # 8/3 D, rounded to the lanes of an accelerator: three matrices as large as the usual two.
  config.model.update(num_kv_heads=heads, mlp_dim=-(-_WIDTH.value * 8 // 3 // HEAD) * HEAD)
  config.model.remat = _REMAT.value
  config.model.residual.name = name
  config.model.residual.block_attn_res.layers_per_block = _PER_BLOCK.value
  config.data.seq_len = _LENGTH.value
  return config


def _sampler(run: Run) -> tuple[Callable[[], float], dict[str, float]]:
  """Returns a function that takes a sample, and what is known of the model and its step."""
  programs = program.build(run)
  step, model = programs.train_step, programs.model
  state = init_state(model, programs.optimizer, seed=0)
  batch = run.layout.put(_random_batch(run), run.train.batch_size)
  token_bytes = jnp.ones(run.decoder.vocab_size, jnp.int32)

  def sample() -> float:
    nonlocal state
    start = time.perf_counter()
    for _ in range(_STEPS.value):
      state, metrics = step(state, batch, token_bytes)
    jax.block_until_ready((state, metrics))
    return (time.perf_counter() - start) / _STEPS.value

  sample()  # compiles
  return sample, {
    "parameters": sum(leaf.size for leaf in model.leaves()),
    "tokens": run.train.batch_size * run.data.seq_len,
    "flops_per_token": training_flops_per_token(run.decoder, model.combinator, run.data.seq_len),
  }


def _random_batch(run: Run) -> dict[str, np.ndarray]:
  shape = run.train.batch_size, run.data.seq_len
  tokens = np.random.default_rng(0).integers(run.decoder.vocab_size, size=(2, *shape))
  inputs, targets = tokens.astype(np.int32)
  positions = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)
  ones = np.ones(shape, np.int32)
  return {"inputs": inputs, "targets": targets, "segment_ids": ones, "positions": positions}


if __name__ == "__main__":
  cli.run(main)
