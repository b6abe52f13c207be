"""Learning rates transfer over widths with muP, and do not without it; docs/scaling.md has figures.

python -m tests.models.mup_transfer_test      (prints them)
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from resjax.base.sharding import Layout
from resjax.models.config import MupConfig
from resjax.models.model_def import ModelDef
from resjax.train import optim
from tests.helpers import decoders
from tests.helpers.losses import text_loss
from tests.helpers.optimizers import config as optimizer_config

WIDTHS = (64, 128, 256, 512)
OFF, MUP = MupConfig(), MupConfig(base_width=128)
RATES = tuple(2.0**power for power in range(-13, -4))  # the steps of a grid
COARSE = RATES[:7:2]
V, T, BATCH = 64, 16, 16


class Trial:
  """A decoder of one width, trained on random bigrams: the next token is one of four, by table."""

  def __init__(self, width, mup, num_layers=2, name="adamw"):
    heads = width // 16
    config = decoders.config(
      vocab_size=V, max_positions=T, num_layers=num_layers, d_model=width, num_heads=heads,
      num_kv_heads=heads, mlp_dim=2 * width, init_std=0.02, mup=mup,
    )  # fmt: skip
    self.model, self.name = ModelDef(config, Layout()), name
    self.scaling = optim.Scaling(config.width_ratio, config.depth_ratio)
    self.table = jnp.asarray(np.random.default_rng(0).integers(0, V, (V, 4)))
    self._programs = {}

  def batch(self, key):
    first, chosen = jax.random.split(key)
    choices = jax.random.randint(chosen, (T, BATCH), 0, 4)
    start = jax.random.randint(first, (BATCH,), 0, V)
    _, tokens = jax.lax.scan(lambda t, c: (self.table[t, c], t), start, choices)
    rows = tokens.T
    ones = jnp.ones((BATCH, T - 1), jnp.int32)
    place = jnp.broadcast_to(jnp.arange(T - 1), ones.shape)
    return {
      "inputs": rows[:, :-1], "targets": rows[:, 1:], "segment_ids": ones, "positions": place
    }  # fmt: skip

  def train(self, rate, steps, seed=0):
    """The loss of every step, and the parameters after the last one."""
    settings = optimizer_config(
      name=self.name, schedule="constant", warmup_steps=0, learning_rate=1.0, clip_norm=0.0
    )
    optimizer = optim.make_optimizer(settings, steps, (), self.scaling)

    def loss(params, rows):
      sums = text_loss(self.model.bind(params), rows, BATCH * T)
      return sums.nats / sums.tokens

    def step(carry, key):
      params, state, rate = carry
      value, grads = jax.value_and_grad(loss)(params, self.batch(key))
      updates, state = optimizer.update(grads, state, params)
      updates = jax.tree.map(lambda u: rate * u, updates)
      return (optax.apply_updates(params, updates), state, rate), value

    @jax.jit
    def run(params, rate, key):
      carry = params, optimizer.init(params), rate
      (params, _, _), losses = jax.lax.scan(step, carry, jax.random.split(key, steps))
      return losses, params

    program = self._programs.setdefault(steps, run)
    return program(self.model.init(seed), jnp.float32(rate), jax.random.key(seed))


def coordinates(width, mup, name="adamw", rate=2.0**-9, num_layers=2):
  """The root mean squares of the states of a decoder after ten steps, by what they are."""
  trial = Trial(width, mup, num_layers, name)
  _, params = trial.train(rate, 10)
  decoder, rows = trial.model.bind(params), trial.batch(jax.random.key(1))

  def rms(x):
    return jnp.sqrt(jnp.mean(jnp.square(x.astype(jnp.float32))))

  @jax.jit
  def measure():
    found = decoder.probe(lambda visits, _: [rms(visit.out) for visit in visits], None,
                          rows["inputs"], rows["segment_ids"], rows["positions"])  # fmt: skip
    logits = decoder.logits(decoder.final_norm(found.output))
    return found.layers, rms(found.output), rms(logits - logits.mean(-1, keepdims=True))

  branches, stream, logits = measure()
  names = [f"{site} {layer}" for site in ("attention", "mlp") for layer in range(num_layers)]
  return dict(zip(names, map(float, np.ravel(branches)), strict=True)) | {
    "stream": float(stream), "logits": float(logits)
  }  # fmt: skip


def losses_by_rate(width, mup, rates, steps=100):
  """The mean loss of the last 20 steps, by learning rate."""
  trial = Trial(width, mup)
  return {rate: float(np.mean(trial.train(rate, steps)[0][-20:])) for rate in rates}


def spread(mup, name):
  """By how much each root mean square differs over widths, as a factor."""
  found = [coordinates(width, mup, name) for width in WIDTHS]
  return {key: max(f[key] for f in found) / min(f[key] for f in found) for key in found[0]}


@pytest.mark.release
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_activations_keep_their_size_over_widths(name):
  assert max(spread(MUP, name).values()) < 2
  plain = spread(OFF, name)
  assert max(plain.values()) > 8 and min(plain.values()) > 2


def streams(mup, depths=(2, 8, 32)):
  """The root mean square of the stream after the last layer, by depth."""
  return [coordinates(64, mup, rate=2.0**-7, num_layers=depth)["stream"] for depth in depths]


@pytest.mark.release
def test_the_stream_keeps_its_size_over_depths():
  small, *others = streams(MupConfig(base_width=64, base_layers=2))
  assert all(0.5 < other / small < 2 for other in others)
  small, large = streams(OFF, (2, 8))
  assert large / small > 8


@pytest.mark.release
def test_the_best_rate_stays_over_widths():
  best = {}
  for mup in (MUP, OFF):
    for width in (128, 512):
      losses = losses_by_rate(width, mup, COARSE)
      best[mup, width] = min(losses, key=losses.__getitem__)
  assert best[MUP, 128] == best[MUP, 512] == best[OFF, 128] == 2.0**-9
  assert best[OFF, 512] == 2.0**-11


def main():
  for mup in (MUP, OFF):
    print(mup)
    for name in ("adamw", "muon"):
      for width in WIDTHS:
        found = coordinates(width, mup, name)
        print(name, width, {key: round(value, 3) for key, value in found.items()})
    depths = MupConfig(64, 2) if mup == MUP else OFF
    print("streams of 2, 8 and 32 layers", streams(depths))
    for width in (128, 512):
      losses = losses_by_rate(width, mup, RATES)
      print(width, {f"2^{np.log2(rate):.0f}": round(loss, 3) for rate, loss in losses.items()})


if __name__ == "__main__":
  main()
