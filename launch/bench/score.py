"""Times the scorer of evaluations against a plain forward pass with the loss.

  resjax bench score                                 (a decoder like GPT-2 124M)
  resjax bench score --layers=4 --d_model=256        (to try it out)

The plain pass runs full rows, as an evaluation in training does. `text` has the windows of a long
text: full rows, all tokens of which are scored. `choices` has rows of any length from 16 tokens on,
of which the last eighth is scored, as in a task with several answers. The sides take turns. What
counts is tokens per second without padding. The command prints one JSON object, and writes it to
--out.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from flax import nnx

from configs import base
from launch.bench import sizes
from launch.bench.kernels import timing
from launch.bench.report import write_report
from resjax.base import PyTree
from resjax.cli import command
from resjax.models import Decoder, loss_sums
from resjax.study.evaluation import Scored, Scorer
from resjax.train import experiment

_LAYERS, _WIDTH = sizes.define(12, 768)
_LENGTH = flags.DEFINE_integer("max_length", 1024, "Tokens of a full row.", lower_bound=64)
_ROWS = flags.DEFINE_integer("rows", 4, "Full rows that run at a time.", lower_bound=1)
_BATCHES = flags.DEFINE_integer("batches", 8, "Batches of full rows in a sample.", lower_bound=1)
_REPEATS = flags.DEFINE_integer("repeats", 5, "Samples of each side.", lower_bound=1)

HEAD = 64
CHUNK = 256  # tokens whose logits exist at a time, on both sides


def main() -> None:
  """Prints the tokens per second of each side, and the ratios to the plain pass."""
  decoder = _decoder()
  scorer = Scorer(decoder, max_length=_LENGTH.value, batch_size=_ROWS.value, chunk_size=CHUNK)
  sides = {"text": _text(decoder), "choices": _choices(decoder)}
  runs: dict[str, Callable[[], object]] = {"plain": _plain(decoder)}
  runs |= {name: partial(scorer.score, rows) for name, rows in sides.items()}
  tokens = {name: sum(len(row.tokens) - 1 for row in rows) for name, rows in sides.items()}
  tokens["plain"] = _BATCHES.value * _ROWS.value * _LENGTH.value
  seconds = timing.interleaved({n: timing.wall(run) for n, run in runs.items()}, _REPEATS.value)
  speed = {name: tokens[name] / float(np.median(found)) for name, found in seconds.items()}
  report = {
    "device": jax.devices()[0].device_kind,
    "jax": jax.__version__,
    "flags": {f.name: f.value for f in (_LAYERS, _WIDTH, _LENGTH, _ROWS, _BATCHES, _REPEATS)},
    "tokens": tokens,
    "tokens_per_second": speed,
    "ratio": {name: speed[name] / speed["plain"] for name in sides},
    "programs": sorted(scorer.programs),
  }
  write_report(report, "score")


def _decoder() -> Decoder:
  config = base.get_config()
  heads = _WIDTH.value // HEAD
  config.model.update(num_layers=_LAYERS.value, d_model=_WIDTH.value)
  config.model.update(num_heads=heads, num_kv_heads=heads, mlp_dim=4 * _WIDTH.value)
  config.data.seq_len = _LENGTH.value
  return Decoder(experiment.build(config).decoder, rngs=nnx.Rngs(0))


def _plain(decoder: Decoder) -> Callable[[], object]:
  """Returns a function that runs the decoder and its loss over batches of full rows."""
  shape = _ROWS.value, _LENGTH.value
  tokens = jnp.asarray(_tokens(decoder, np.random.default_rng(0), shape[0] * (shape[1] + 1)))
  rows = tokens.reshape(shape[0], shape[1] + 1)
  place = jnp.broadcast_to(jnp.arange(shape[1]), shape)
  batch = {"inputs": rows[:, :-1], "targets": rows[:, 1:], "positions": place}
  batch["segment_ids"] = jnp.ones(shape, jnp.int32)
  graphdef, state = nnx.split(decoder)

  @jax.jit
  def run(state: PyTree, batch: dict[str, jax.Array]) -> jax.Array:
    model = nnx.merge(graphdef, state)
    hidden = model(batch["inputs"], batch["segment_ids"], batch["positions"])
    return loss_sums(model, hidden, batch, CHUNK).nats

  return lambda: [run(state, batch) for _ in range(_BATCHES.value)]


def _text(decoder: Decoder) -> list[Scored]:
  rng = np.random.default_rng(1)
  count = _BATCHES.value * _ROWS.value
  return [Scored(_tokens(decoder, rng, _LENGTH.value + 1)) for _ in range(count)]


def _choices(decoder: Decoder) -> list[Scored]:
  """Returns as many tokens in rows of lengths drawn uniformly."""
  rng, rows, left = np.random.default_rng(2), [], _BATCHES.value * _ROWS.value * _LENGTH.value
  while left > 0:
    length = int(rng.integers(16, _LENGTH.value + 1))
    rows.append(Scored(_tokens(decoder, rng, length + 1), length - length // 8))
    left -= length
  return rows


def _tokens(decoder: Decoder, rng: np.random.Generator, count: int) -> np.ndarray:
  return rng.integers(decoder.config.vocab_size, size=count).astype(np.int32)


if __name__ == "__main__":
  command.run(main)
