"""Training bare combinators to retrieve earlier outputs: all tasks and seeds in one program."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax

from resjax.base import Array, PyTree
from resjax.combinators import Combinator, PreNorm
from resjax.study.analysis.depth_retrieval.task import SITE, Setup, System, Task

_EPS = 1e-6  # of norms


class _Question(NamedTuple):
  """What differs among the runs of one program besides initial values.

  Attributes:
    marked: whether the source that is asked for bears the mark.
    source: its number if it does not.
    seed: of everything that is drawn.
  """

  marked: Array
  source: Array
  seed: Array


class _World(NamedTuple):
  """What is drawn once for a run: symbols [V, D], tags of sources [L + 1, D] and the mark [D]."""

  symbols: Array
  tags: Array
  mark: Array


def check(system: System, num_layers: int, tasks: Sequence[Task], setup: Setup) -> None:
  """Raises ValueError if a task asks for a source beyond L, or the system cannot be built."""
  for task in tasks:
    if task.source is not None and task.source > num_layers:
      raise ValueError(f"--task={task}: with {num_layers} layers there are sources 0..{num_layers}")
  nnx.eval_shape(lambda: system.build(num_layers, setup.d_model, nnx.Rngs(0)))


def accuracies(
  system: System, num_layers: int, tasks: Sequence[Task], seeds: Sequence[int], setup: Setup
) -> np.ndarray:
  """Trains a bare combinator with every task and seed, and returns its accuracies [tasks, seeds].

  Source j = 0..L writes E[s_j] + tag_j, with s_j uniform among V symbols, E ~ N(0, 1) and
  tag ~ tag_scale · N(0, 1): source 0 by `init`, source j by layer j, whatever that layer reads.
  If one source bears the mark, it writes m ~ N(0, 1) too. The RMS norm of the output goes through a
  linear map to V logits. Trained are that map and the parameters of the combinator, by the cross
  entropy of s_j; accuracy is that of the largest logit on new examples.

  What is drawn for a seed (E, tags, mark, examples, initial values) is the same for all systems and
  tasks, and does not depend on which others are trained beside them; results do up to rounding.

  Args:
    system: the combinator, and where its output is taken.
    num_layers: L, with one site each.
    tasks: what is asked for.
    seeds: of all that is drawn.
    setup: sizes and training.

  Raises:
    ValueError: see `check`.
  """
  check(system, num_layers, tasks, setup)
  made = {seed: system.build(num_layers, setup.d_model, nnx.Rngs(seed)) for seed in seeds}
  runs = [(task, seed) for task in tasks for seed in seeds]
  graphdef = nnx.graphdef(made[seeds[0]])
  params = jax.tree.map(lambda *rows: jnp.stack(rows), *(nnx.state(made[seed]) for _, seed in runs))
  questions = _Question(
    jnp.array([task.source is None for task, _ in runs]),
    jnp.array([task.source or 0 for task, _ in runs]),
    jnp.array([seed for _, seed in runs]),
  )
  model = _Model(graphdef, system, num_layers, setup)
  found = jax.jit(jax.vmap(model.train))(params, questions)
  return np.asarray(found, np.float64).reshape(len(tasks), len(seeds))


@dataclasses.dataclass(frozen=True)
class _Model:
  """A combinator under a linear map to logits, with its task; parameters are (combinator, map)."""

  graphdef: nnx.GraphDef
  system: System
  num_layers: int
  setup: Setup

  def train(self, combinator: PyTree, question: _Question) -> Array:
    """Returns the accuracy after training from a combinator's parameters."""
    setup = self.setup
    keys = jax.random.split(jax.random.key(question.seed), 6)
    size = setup.num_symbols, setup.d_model
    world = _World(
      jax.random.normal(keys[0], size),
      setup.tag_scale * jax.random.normal(keys[1], (self.num_layers + 1, setup.d_model)),
      jax.random.normal(keys[2], (setup.d_model,)),
    )
    head = jax.random.normal(keys[3], size[::-1]) / setup.d_model**0.5
    rate = optax.cosine_decay_schedule(setup.learning_rate, setup.steps)
    optimizer = optax.chain(optax.clip_by_global_norm(setup.clip_norm), optax.adam(rate))
    score = partial(self._score, world, question)

    def step(carry: PyTree, key: Array) -> tuple[PyTree, None]:
      params, moments = carry
      gradients = jax.grad(lambda params: score(params, key)[0])(params)
      updates, moments = optimizer.update(gradients, moments, params)
      return (optax.apply_updates(params, updates), moments), None

    start = (combinator, head)
    examples = jax.random.split(keys[4], setup.steps)
    (params, _), _ = lax.scan(step, (start, optimizer.init(start)), examples)
    fresh = jax.random.split(keys[5], setup.evaluation_batches)
    return lax.map(lambda key: score(params, key)[1], fresh).mean()

  def _score(
    self, world: _World, question: _Question, params: PyTree, key: Array
  ) -> tuple[Array, Array]:
    """Returns the cross entropy and the accuracy of a batch that the key draws."""
    sources, batch = self.num_layers + 1, self.setup.batch_size
    of_symbols, of_marks = jax.random.split(key)
    symbols = jax.random.randint(of_symbols, (sources, batch), 0, self.setup.num_symbols)
    drawn = jax.random.randint(of_marks, (batch,), 0, sources)
    asked = jnp.where(question.marked, drawn, question.source)
    bears = question.marked & (jnp.arange(sources)[:, None] == asked)
    writes = world.symbols[symbols] + world.tags[:, None] + bears[..., None] * world.mark
    combinator = nnx.merge(self.graphdef, params[0])
    logits = _output(combinator, writes, self.system.next_read) @ params[1]
    target = jnp.take_along_axis(symbols, asked[None], axis=0)[0]
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, target)
    return loss.mean(), jnp.mean(jnp.argmax(logits, axis=-1) == target)


def _output(combinator: Combinator, writes: Array, next_read: bool) -> Array:
  """Returns the normalised output [B, D] of the layers that make the writes [L + 1, B, D].

  It is the loop of the docstring of `Combinator`, with rows of one token. `resjax.models.depth` has
  no read behind the last layer.
  """
  norm = PreNorm(jnp.ones(writes.shape[-1]), _EPS)
  state = combinator.init(writes[0][:, None])
  for layer, out in enumerate(writes[1:]):
    views, tape = combinator.read(state, layer, SITE)
    normed = {name: norm(view) for name, view in views.items()} if combinator.pre_norm else views
    state = combinator.write(state, layer, SITE, out[:, None], normed=normed, tape=tape)
  last = len(writes) - 1
  output = combinator.read(state, last, SITE)[0]["x"] if next_read else combinator.final(state)
  return norm(output[:, 0])
