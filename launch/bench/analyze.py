"""Times an analysis against the matrix products that it takes, in turn.

  resjax bench analyze                                    (four layers with the widths of SmolLM2)
  resjax bench analyze --hf=HuggingFaceTB/SmolLM2-135M    (a pretrained model)

The analysis is `resjax.study.analysis.measure` without its compilation: forward pass, lens at every
depth position, KL, and intervals. The products are those of the forward pass and of one output head
per depth position, and nothing else is done with their results. Seconds are those of the wall and
those of all cores together, which other programs on the machine disturb less. The peak is that of
the process, with the parameters. The command prints one JSON object, and writes it to --out.
"""

import resource
import statistics
import time
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from flax import nnx
from jax import lax

from configs import base
from launch.bench import sizes
from launch.bench.report import write_report
from resjax.base import Array, PyTree
from resjax.cli import command
from resjax.cli.actions import loading
from resjax.models import Decoder
from resjax.study.analysis import Meter, ProbeConfig
from resjax.train import experiment

_HF = flags.DEFINE_string("hf", None, "Pretrained model, in place of one that is drawn.")
_LAYERS, _WIDTH = sizes.define(4, 576)
_VOCAB = flags.DEFINE_integer("vocab_size", 49_152, "Words.", lower_bound=8)
_TOKENS = flags.DEFINE_integer("tokens", 4096, "Tokens of a sample, whole batches.", lower_bound=2)
_LENGTH = flags.DEFINE_integer("seq_len", 512, "Tokens of a row.", lower_bound=2)
_ROWS = flags.DEFINE_integer("rows", 4, "Rows that run at a time.", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 3, "Samples of each side.", lower_bound=1)

HEAD = 64
TOKENS, WORDS = 512, 2048  # whose logits exist at a time, so that they stay in the caches


def main() -> None:
  """Prints seconds of both sides, their ratio, and the peak of memory."""
  decoder = loading.from_huggingface(_HF.value).decoder if _HF.value else _drawn()
  batches, config = _batches(decoder), ProbeConfig()
  meter = Meter(decoder, batches, batch_size=_ROWS.value, corpus="random tokens", config=config)
  graphdef, state = nnx.split(decoder)
  positions = len(config.positions(decoder.combinator))
  products = jax.jit(lambda state: _products(nnx.merge(graphdef, state), positions))
  sides: dict[str, Callable[[], object]] = {
    "products": lambda: jax.block_until_ready([products(state) for _ in batches]),
    "analysis": lambda: meter.measure(state, "m"),
  }
  wall: dict[str, list[float]] = {name: [] for name in sides}
  cores: dict[str, list[float]] = {name: [] for name in sides}
  for repeat in range(_REPEATS.value + 1):
    for name, run in sides.items():
      before = time.perf_counter(), time.process_time()
      run()
      if repeat:  # not the one that compiles
        wall[name].append(time.perf_counter() - before[0])
        cores[name].append(time.process_time() - before[1])
  tokens = len(batches) * _ROWS.value * _LENGTH.value
  seconds = {name: statistics.median(found) for name, found in wall.items()}
  of_cores = {name: statistics.median(found) for name, found in cores.items()}
  shape = (_HF,) if _HF.value else (_LAYERS, _WIDTH, _VOCAB)
  flags_of = (*shape, _TOKENS, _LENGTH, _ROWS, _REPEATS)
  report = {
    "device": jax.devices()[0].device_kind,
    "jax": jax.__version__,
    "flags": {f.name: f.value for f in flags_of},
    "tokens": tokens,
    "flops": tokens * config.flops_per_token(decoder, _LENGTH.value),
    "seconds": seconds,
    "ratio": seconds["analysis"] / seconds["products"],
    "core_seconds": of_cores,
    "core_ratio": of_cores["analysis"] / of_cores["products"],
    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
  }
  write_report(report, "analyze")


def _drawn() -> Decoder:
  config = base.get_config("llama")
  heads = _WIDTH.value // HEAD
  config.model.update(num_layers=_LAYERS.value, d_model=_WIDTH.value, dtype="float32")
  config.model.update(num_heads=heads, num_kv_heads=heads, mlp_dim=8 * _WIDTH.value // 3)
  config.data.seq_len = _LENGTH.value
  run = experiment.build(config).with_vocab_size(_VOCAB.value)
  return Decoder(run.decoder, rngs=nnx.Rngs(0))


def _batches(decoder: Decoder) -> list[Mapping[str, np.ndarray]]:
  shape, rng = (_ROWS.value, _LENGTH.value), np.random.default_rng(0)
  place = np.broadcast_to(np.arange(shape[1]), shape)
  return [
    {
      "inputs": rng.integers(decoder.config.vocab_size, size=shape),
      "segment_ids": np.ones(shape, int),
      "positions": place,
    }
    for _ in range(max(1, _TOKENS.value // (shape[0] * shape[1])))
  ]


def _products(decoder: Decoder, positions: int) -> Array:
  """Returns a number that depends on all products of a batch.

  They are those of every matrix of the layers, of the scores and values of attention, and of an
  output head for each depth position.
  """
  config, shape = decoder.config, (_ROWS.value, _LENGTH.value)
  matrices = [leaf for leaf in jax.tree.leaves(nnx.state(decoder.layers)) if leaf.ndim == 3]
  widest = max(leaf.shape[1] for leaf in matrices)
  x = jnp.ones((shape[0] * shape[1], widest), config.dtype)
  heads = jnp.ones((*shape, config.num_heads, config.head_dim), config.dtype)

  def layer(total: Array, own: PyTree) -> tuple[Array, None]:
    shifted = 1e-6 * total.astype(x.dtype)  # nothing can be taken out of the loop
    for matrix in own:
      total += _kept((x[:, : len(matrix)] + shifted) @ matrix.astype(x.dtype))
    scores = jnp.einsum("bqhc,bkhc->bhqk", heads + shifted, heads)
    return total + _kept(jnp.einsum("bhqk,bkhc->bqhc", scores, heads)), None

  total = lax.scan(layer, jnp.zeros(()), matrices)[0]
  head = decoder.head.astype(x.dtype)

  def position(total: Array, _: None) -> tuple[Array, None]:
    def chunk(total: Array, rows: Array) -> Array:
      shifted = rows + 1e-6 * total.astype(rows.dtype)
      return _over(lambda total, words: total + _kept(shifted @ words.T), total, head, WORDS)

    return _over(chunk, total, x[:, : config.d_model], TOKENS), None

  return lax.scan(position, total, None, length=positions)[0]


def _over(add: Callable[[Array, Array], Array], total: Array, rows: Array, size: int) -> Array:
  """Returns the total to which each part of `rows` [n, D] was added, `size` rows at a time."""
  whole = len(rows) // size * size
  parts = rows[:whole].reshape(-1, size, rows.shape[1])
  total = lax.scan(lambda total, part: (add(total, part), None), total, parts)[0]
  return total if whole == len(rows) else add(total, rows[whole:])


def _kept(product: Array) -> Array:
  """Returns one element of a product all of which is computed."""
  return lax.optimization_barrier(product).ravel()[0].astype(jnp.float32)


if __name__ == "__main__":
  command.run(main)
