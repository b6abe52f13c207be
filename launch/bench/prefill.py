"""Times the prefill of a prompt by the decoder, and by the same model in transformers with SDPA.

  resjax bench prefill                             (a decoder like GPT-2 124M, on the CPU)
  resjax bench prefill --layers=2 --d_model=128 --lengths=64 --repeats=1   (to try it out)

A prefill runs a whole prompt of one row and leaves its keys and values in a cache; both sides have
the same random parameters, in float32. They run in turn, so that the machine is the same for both.
Without torch and transformers only the decoder is timed. The command prints one JSON object, and
writes it to --out.
"""

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from flax import nnx

from configs import base
from launch.bench import sizes
from launch.bench.kernels import timing
from launch.bench.report import write_report
from resjax.cli import command
from resjax.interop import huggingface
from resjax.models import Decoder
from resjax.train import experiment

_LAYERS, _WIDTH = sizes.define(12, 768)
_LENGTHS = flags.DEFINE_list("lengths", ["1024", "2048"], "Numbers of tokens of the prompts.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Samples of each prefill.", lower_bound=1)

HEAD = 64


def main() -> None:
  """Prints milliseconds per prefill, temporary memory, and the ratio of both sides."""
  lengths = [int(length) for length in _LENGTHS.value]
  decoder = _decoder(max(lengths))
  peer = _peer(decoder)
  cases = {str(length): _case(decoder, peer, length) for length in lengths}
  report = {
    "device": jax.devices()[0].device_kind,
    "jax": jax.__version__,
    "flags": {flag.name: flag.value for flag in (_LAYERS, _WIDTH, _REPEATS)},
    "cases": cases,
  }
  write_report(report, "prefill")


def _decoder(longest: int) -> Decoder:
  config = base.get_config()
  heads = _WIDTH.value // HEAD
  config.model.update(num_layers=_LAYERS.value, d_model=_WIDTH.value, dtype="float32")
  config.model.update(num_heads=heads, num_kv_heads=heads, mlp_dim=4 * _WIDTH.value)
  config.data.seq_len = longest
  return Decoder(experiment.build(config).decoder, rngs=nnx.Rngs(0))


def _case(
  decoder: Decoder, peer: Callable[[np.ndarray], np.ndarray] | None, length: int
) -> dict[str, object]:
  vocabulary = decoder.config.vocab_size
  tokens = np.random.default_rng(0).integers(vocabulary, size=(1, length)).astype(np.int32)
  graphdef, state = nnx.split(decoder)

  def prefill(state: nnx.State, tokens: jax.Array) -> tuple:
    model = nnx.merge(graphdef, state)
    hidden, cache = model.decode(tokens, model.empty_cache(1, length))
    return hidden[:, -1], cache

  compiled = jax.jit(prefill).lower(state, jnp.asarray(tokens)).compile()
  samplers = {"resjax": timing.wall(lambda: compiled(state, tokens))}
  memory = compiled.memory_analysis()
  report: dict[str, object] = {"temporary_bytes": memory.temp_size_in_bytes if memory else None}
  if peer is not None:
    samplers["transformers"] = timing.wall(lambda: peer(tokens))
    ours, theirs = np.asarray(compiled(state, tokens)[0]), peer(tokens)
    report["difference"] = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
  found = timing.interleaved(samplers, _REPEATS.value)
  report |= {name: timing.summary(seconds) for name, seconds in found.items()}
  if peer is not None:
    medians = [timing.summary(found[name])["median_ms"] for name in ("resjax", "transformers")]
    report["resjax over transformers"] = medians[0] / medians[1]
  return report


def _peer(decoder: Decoder) -> Callable[[np.ndarray], np.ndarray] | None:
  """Returns the prefill of the same model in transformers, which gives the last hidden state."""
  if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")):
    return None
  import torch
  import transformers

  with tempfile.TemporaryDirectory() as folder:
    huggingface.export(decoder, Path(folder) / "model")
    model = transformers.AutoModel.from_pretrained(
      Path(folder) / "model", attn_implementation="sdpa", dtype=torch.float32
    ).eval()

  def prefill(tokens: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
      found = model(torch.from_numpy(tokens).long(), use_cache=True)
    return found.last_hidden_state[:, -1].numpy()

  return prefill


if __name__ == "__main__":
  command.run(main)
