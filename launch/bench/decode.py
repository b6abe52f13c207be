"""Compares what a decoded token costs with several combinators: time here, bytes on an absent TPU.

  resjax bench decode --config=tiny                      (timed on the CPU)
  resjax bench decode --config=llama_1p3b --topology=v5e-1 --tokens=2048

A token is one step of `Decoder.decode` behind a cache of `--tokens` tokens, with the logits and the
most probable next token; parameters and activations have the dtype of the config. Without
--topology the models take turns: a sample is the time of `--steps` tokens in one program over
their number. With --topology one step is compiled for one device of that slice, and its
traffic from and to main memory is counted. The command prints one JSON object; --out gets it too.
"""

from functools import partial

import jax
import jax.numpy as jnp
from absl import flags
from jax import lax
from ml_collections import ConfigDict

from launch import topology
from launch.bench.kernels import timing
from launch.bench.program import hlo, passes
from launch.bench.report import write_report
from resjax.aot import absent_devices, program_text
from resjax.base import Array, PyTree
from resjax.cli import command
from resjax.models import DecodeCache, ModelDef
from resjax.train import experiment

_CONFIG = command.define_config("The config of the decoder.")
_NAMES = flags.DEFINE_list(
  "residuals", ["standard", "block_attn_res"], "The first is the baseline."
)
_ROWS = flags.DEFINE_integer("rows", 1, "Rows that are decoded together.", lower_bound=1)
_TOKENS = flags.DEFINE_integer("tokens", 128, "Tokens in the cache.", lower_bound=1)
_STEPS = flags.DEFINE_integer("steps", 100, "Tokens of a sample.", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 200, "Samples of each combinator.", lower_bound=1)


def main() -> None:
  """Prints the cost of a token with each combinator, and its ratio to the first one."""
  config = command.config_value(_CONFIG)
  devices = jax.devices()[:1]
  if topology.FLAG.value:
    devices = list(absent_devices.describe(topology.FLAG.value).devices[:1])
  models = {name: _model(config, name, devices) for name in _NAMES.value}
  costs = _megabytes(models) if topology.FLAG.value else _microseconds(models)
  first = costs[_NAMES.value[0]]
  report = {
    "device": devices[0].device_kind,
    "jax": jax.__version__,
    "flags": {flag.name: flag.value for flag in (_ROWS, _TOKENS)},
    "unit": "MB per token step" if topology.FLAG.value else "microseconds per token step",
    "cost": costs,
    "ratio": {name: cost / first for name, cost in costs.items()},
  }
  write_report(report, "decode")


def _model(config: ConfigDict, name: str, devices: list[jax.Device]) -> ModelDef:
  config = config.copy_and_resolve_references()
  config.model.residual.name = name
  config.mesh.update(data=1, fsdp=1, tensor=1, sequence=1)
  config.train.update(batch_size=1, microbatches=1)
  config.data.seq_len = max(config.data.seq_len, _TOKENS.value + _STEPS.value + 1)
  run = experiment.build(config, devices)
  return ModelDef(run.decoder, run.layout)


def _step(model: ModelDef, params: PyTree, token: Array, cache: DecodeCache) -> tuple:
  """Returns the most probable next token [B, 1], and the cache with this one."""
  decoder = model.bind(params)
  hidden, cache = decoder.decode(token, cache)
  following = jnp.argmax(decoder.logits(hidden[:, -1]), axis=-1)
  return following[:, None].astype(token.dtype), cache


def _megabytes(models: dict[str, ModelDef]) -> dict[str, float]:
  """Returns what one step moves from and to main memory."""
  found = {}
  for name, model in models.items():
    size = _TOKENS.value + 1
    start = jax.eval_shape(lambda m=model, n=size: _empty(m, n))
    here = model.layout.sharding()
    start = jax.tree.map(
      lambda a, s=here: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), start
    )
    compiled = jax.jit(partial(_step, model)).lower(model.abstract, *start).compile()
    parts, _ = passes.traffic(hlo.parse(program_text(compiled)))
    found[name] = sum(part.hbm for part in parts.values()) / 1e6
  return found


def _empty(model: ModelDef, size: int) -> tuple[Array, DecodeCache]:
  decoder = model.config
  tokens = jnp.ones((_ROWS.value, 1), jnp.int32)
  return tokens, DecodeCache.empty(decoder, model.combinator, _ROWS.value, size)


def _microseconds(models: dict[str, ModelDef]) -> dict[str, float]:
  """Returns the median time of a step."""
  samplers = {name: _sampler(model) for name, model in models.items()}
  found = timing.interleaved(samplers, _REPEATS.value)
  medians = {name: timing.summary(seconds)["median_ms"] for name, seconds in found.items()}
  return {name: milliseconds * 1e3 / _STEPS.value for name, milliseconds in medians.items()}


def _sampler(model: ModelDef) -> timing.Sampler:
  @jax.jit
  def many(params: PyTree, start: tuple[Array, DecodeCache]) -> tuple[Array, DecodeCache]:
    return lax.fori_loop(0, _STEPS.value, lambda _, c: _step(model, params, *c), start)

  # Of no meaning, but not zero: the time of a step does not depend on them.
  params = jax.tree.map(lambda leaf: jnp.full(leaf.shape, 0.01, leaf.dtype), model.abstract)
  token, cache = _empty(model, _TOKENS.value + _STEPS.value)
  prompt = jnp.ones((_ROWS.value, _TOKENS.value), token.dtype)
  _, cache = jax.jit(lambda p: model.bind(p).decode(prompt, cache))(params)
  return timing.wall(lambda: many(params, (token, cache)))


if __name__ == "__main__":
  command.run(main)
