"""Trains one of the examples, with a plain residual add or with any combinator in its place.

  python docs/examples/train_example.py vision_transformer
  python docs/examples/train_example.py vision_transformer --combinator=attn_res

Without --combinator it trains before.py, with it after.py. Data need no download: bytes of Python's
standard library for decoders, scikit-learn's digits for the others.
"""

import argparse
import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import diff_sizes
import digits
import jax
import jax.numpy as jnp
import numpy as np
import optax
import stdlib_text
from flax import linen, nnx

from resjax import combinators

Batch = tuple[np.ndarray, ...]
Apply = Callable[..., jax.Array]  # of the inputs of a model


@dataclasses.dataclass(frozen=True)
class Task:
  """What a model is trained on.

  Attributes:
    inputs: takes from a batch what the model is called with.
    loss: loss(output of the model, batch), a mean over the batch.
    batches: batches(steps) yields as many batches.
  """

  inputs: Callable[[Batch], Batch]
  loss: Callable[[jax.Array, Batch], jax.Array]
  batches: Callable[[int], Iterator[Batch]]


def _cross_entropy(logits: jax.Array, labels: np.ndarray) -> jax.Array:
  return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def _flow_batches(steps: int) -> Iterator[Batch]:
  """Yields points on straight lines from noise to digits, times, labels, and the velocities."""
  rng = np.random.default_rng(1)
  for images, labels in digits.batches(digits.load()[0], steps):
    noise = rng.normal(size=images.shape).astype(np.float32)
    time = rng.uniform(size=len(images)).astype(np.float32)
    weight = time[:, None, None]
    yield (1 - weight) * noise + weight * images, time, labels, images - noise


TEXT = Task(
  inputs=lambda batch: (batch[0][:, :-1],),
  loss=lambda logits, batch: _cross_entropy(logits, batch[0][:, 1:]),
  batches=lambda steps: ((tokens,) for tokens in stdlib_text.batches(steps)),
)
CLASSES = Task(
  inputs=lambda batch: batch[:1],
  loss=lambda logits, batch: _cross_entropy(logits, batch[1]),
  batches=lambda steps: digits.batches(digits.load()[0], steps),
)
FLOW = Task(
  inputs=lambda batch: batch[:3],
  loss=lambda velocity, batch: jnp.mean((velocity - batch[3]) ** 2),
  batches=_flow_batches,
)
TASKS = {"vision_transformer": CLASSES, "diffusion_transformer": FLOW}  # the others: TEXT


def task_of(name: str) -> Task:
  """Returns what an example is trained on."""
  return TASKS.get(name, TEXT)


def make(name: str, kind: str | None, batch: Batch, **sizes: Any) -> tuple[Any, Apply]:
  """Returns the parameters of a new model, and apply(parameters, *inputs).

  Args:
    name: one of `diff_sizes.NAMES`.
    kind: a combinator; None for the model before the change.
    batch: one batch, for shapes.
    **sizes: fields or arguments of the model.

  Raises:
    ValueError: the combinator cannot learn in this model.
  """
  if (name, kind) == ("diffusion_transformer", "rezero"):
    raise ValueError(
      "'rezero' starts at zero, and so do the gates of adaLN-Zero: a product of both never learns; "
      "take --combinator=layerscale, or give the gates another initial value"
    )
  module = importlib.import_module(f"{name}.{'before' if kind is None else 'after'}")
  arguments = sizes if kind is None else sizes | {"kind": kind}
  if issubclass(module.Model, linen.Module):
    model = module.Model(**arguments)
    variables = jax.jit(model.init)(jax.random.key(0), *task_of(name).inputs(batch))
    return variables["params"], lambda params, *inputs: model.apply({"params": params}, *inputs)
  graphdef, params = nnx.split(module.Model(**arguments, rngs=nnx.Rngs(0)))
  return params, lambda params, *inputs: nnx.merge(graphdef, params)(*inputs)


def train(name: str, kind: str | None, steps: int, learning_rate: float = 3e-3) -> list[float]:
  """Trains a new model, and returns the loss of every step."""
  task = task_of(name)
  batches = list(task.batches(steps))
  params, apply = make(name, kind, batches[0])
  optimizer = optax.adamw(optax.cosine_onecycle_schedule(steps, learning_rate))
  opt_state = optimizer.init(params)

  @jax.jit
  def step(params: Any, opt_state: Any, batch: Batch) -> tuple[Any, Any, jax.Array]:
    def loss(params: Any) -> jax.Array:
      return task.loss(apply(params, *task.inputs(batch)), batch)

    value, gradients = jax.value_and_grad(loss)(params)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value

  losses = []
  for number, batch in enumerate(batches):
    params, opt_state, value = step(params, opt_state, batch)
    losses.append(float(value))
    if number % 50 == 0:
      print(f"step {number}  loss {losses[-1]:.3f}")
  return losses


if __name__ == "__main__":
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  examples, kinds = diff_sizes.NAMES, combinators.names()
  parser.add_argument("example", metavar="EXAMPLE", choices=examples, help=", ".join(examples))
  without = "; without it the model adds residuals"
  parser.add_argument(
    "--combinator", metavar="NAME", choices=kinds, help=", ".join(kinds) + without
  )
  parser.add_argument("--steps", type=int, default=300, help="default: %(default)s")
  args = parser.parse_args()
  try:
    losses = train(args.example, args.combinator, args.steps)
  except ValueError as error:
    raise SystemExit(f"error: {error}") from None
  chosen = args.combinator or "plain residual add"
  print(f"{args.example}, {chosen}: loss {losses[0]:.3f} to {np.mean(losses[-20:]):.3f}")
