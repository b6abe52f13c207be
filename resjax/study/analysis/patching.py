"""Activation patching: which states of one prompt decide what the model says of another."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from resjax.base import Array, PyTree
from resjax.combinators import Combinator, Layer, TokenContext
from resjax.models import Decoder
from resjax.study.analysis.alignment import DepthPosition
from resjax.study.analysis.probing import ProbeConfig
from resjax.study.analysis.prompts import rows_of
from resjax.study.analysis.wrapped_path import WrappedPath, with_path

_ROWS = 32  # prompts that run at a time, the clean one included
# Two batches whose shapes tell the axes of rows and of tokens apart from all others.
_SHAPES = ((5, 7), (6, 9))

# The axes of rows and of tokens of an array; None: it has nothing for each token.
Axes = tuple[int, int] | None

Progress = Callable[[int, int], None]
"""A function that is called as progress(done, total) after every batch."""


@dataclasses.dataclass(frozen=True)
class Patching:
  """What a model says at the end of a corrupted prompt with states of a clean one in it.

  The P depth positions are the embedding and the places behind every layer or site. At a position,
  and at one token of T, the whole depth state of the corrupted run is replaced by that of the clean
  run: for combinators with several streams or sources these are all of them. What is measured is
  the logit of one token less that of another, both after the last token.

  Attributes:
    positions: the P depth positions, in order.
    clean_tokens: the clean prompt [T].
    corrupted_tokens: the corrupted prompt [T].
    answers: the token that the clean prompt asks for, and that of the corrupted one.
    clean: the logit difference of the clean prompt.
    corrupted: that of the corrupted prompt.
    patched: that of the corrupted prompt with one state replaced [P, T].
    patched_all: the same with all T states of a depth position replaced [P].
  """

  positions: tuple[DepthPosition, ...]
  clean_tokens: np.ndarray
  corrupted_tokens: np.ndarray
  answers: tuple[int, int]
  clean: float
  corrupted: float
  patched: np.ndarray
  patched_all: np.ndarray

  def recovered(self, difference: np.ndarray) -> np.ndarray:
    """Returns the recovered share of the difference between both prompts: 0 none, 1 all.

    It is NaN where both prompts have the same logit difference.
    """
    apart = self.clean - self.corrupted
    return (difference - self.corrupted) / (apart or np.nan)


def patch(
  decoder: Decoder,
  clean: np.ndarray,
  corrupted: np.ndarray,
  answers: tuple[int, int] | None = None,
  *,
  every: str = "layer",
  progress: Progress = lambda done, total: None,
) -> Patching:
  """Replaces states of a corrupted prompt by the states of a clean one, one after another.

  It needs as many rows of T tokens as there are depth positions times tokens, and the memory of the
  states of 32 rows at all depths.

  Args:
    decoder: any decoder, sharded or not, with any combinator.
    clean: the tokens of the clean prompt [T].
    corrupted: the tokens of the corrupted prompt [T].
    answers: the two tokens whose logits are compared; None: the most probable ones after each of
      the prompts.
    every: `layer` or `site`: whether states are replaced after layers or after sites.
    progress: is called after every batch.

  Raises:
    ValueError: The prompts differ in length, or they have the same answer.
  """
  _check(clean, corrupted)
  length = len(clean)
  positions = ProbeConfig(every=every).positions(decoder.combinator)
  step = len(decoder.combinator.sites) if every == "layer" else 1
  run = _Runner(decoder, clean, corrupted)
  whole = run.plain()
  if not np.isfinite(whole).all():
    raise ValueError("the logits of the model are not finite; patch one whose parameters are")
  answers = _answers(whole) if answers is None else answers
  if answers[0] == answers[1]:
    raise ValueError(f"token {answers[0]} less itself is no difference; give two other answers")
  # Every case replaces one state, or those of all tokens, at one depth position.
  tokens = np.tile(np.concatenate([np.eye(length), np.ones((1, length))]), (len(positions), 1)) > 0
  places = np.repeat(np.arange(len(positions)) * step, length + 1)
  found = []
  for first in range(0, len(places), run.cases):
    part = slice(first, first + run.cases)
    found.append(run(tokens[part], places[part]))
    progress(min(first + run.cases, len(places)), len(places))
  difference = np.concatenate(found)[:, answers[0]] - np.concatenate(found)[:, answers[1]]
  patched = difference.reshape(len(positions), length + 1)
  clean_end, corrupted_end = (float(row[answers[0]] - row[answers[1]]) for row in whole)
  return Patching(
    positions,
    np.asarray(clean),
    np.asarray(corrupted),
    answers,
    clean_end,
    corrupted_end,
    patched[:, :-1],
    patched[:, -1],
  )


def _check(clean: np.ndarray, corrupted: np.ndarray) -> None:
  if len(clean) != len(corrupted):
    raise ValueError(
      f"the clean prompt has {len(clean)} tokens and the corrupted one {len(corrupted)}; give "
      "prompts of equally many tokens, so that each state has a counterpart"
    )


def _answers(logits: np.ndarray) -> tuple[int, int]:
  """Returns the most probable tokens after both prompts, given logits [2, V]."""
  first, second = (int(token) for token in np.argmax(logits, axis=-1))
  if first == second:
    raise ValueError(
      f"both prompts are answered with token {first}; give the answers to compare, for example "
      '--answer=" Paris" --answer=" Rome"'
    )
  return first, second


class _Runner:
  """Runs a clean prompt in row 0, a corrupted one in row 1 and patched ones in all others."""

  def __init__(self, decoder: Decoder, clean: np.ndarray, corrupted: np.ndarray):
    self._layout = decoder.layout
    self._batch = rows_of([clean] + [corrupted] * (_ROWS - 1), decoder.layout)
    self._shape, last = self._batch["inputs"].shape, len(clean) - 1
    self.cases = self._shape[0] - 2
    axes = _state_axes(decoder.combinator)
    graphdef, parameters = nnx.split(decoder)

    @functools.partial(jax.jit, out_shardings=decoder.layout.everywhere)
    def logits(
      parameters: PyTree, batch: Mapping[str, Array], tokens: Array, places: Array
    ) -> Array:
      model = nnx.merge(graphdef, parameters)
      path = _PatchedPath(model.combinator, tokens, places, axes)
      hidden = with_path(model, path)(batch["inputs"], batch["segment_ids"], batch["positions"])
      return model.logits(hidden[:, last])

    self._logits, self._parameters = logits, parameters
    self._placed = decoder.layout.split(self._batch)

  def plain(self) -> np.ndarray:
    """Returns the logits after the clean and the corrupted prompt [2, V]."""
    return self._run(np.zeros((0, 1), bool), np.zeros(0, np.int32))[:2]

  def __call__(self, tokens: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Returns the logits [n, V] of corrupted prompts with clean states.

    Args:
      tokens: the tokens whose states are replaced [n, T]; n is at most `cases`.
      places: the number of the site behind which they are replaced; 0: the embedding [n].
    """
    return self._run(tokens, places)[2 : 2 + len(tokens)]

  def _run(self, tokens: np.ndarray, places: np.ndarray) -> np.ndarray:
    masks, numbers = np.zeros(self._shape, bool), np.zeros(self._shape[0], np.int32)
    masks[2 : 2 + len(tokens), : tokens.shape[1]] = tokens
    numbers[2 : 2 + len(places)] = places
    where = self._layout.copy(masks), self._layout.copy(numbers)
    return jax.device_get(self._logits(self._parameters, self._placed, *where))


class _PatchedPath(WrappedPath):
  """A residual path on which states of some rows are replaced by the states of row 0.

  Args:
    inner: the combinator of the model.
    tokens: the tokens whose states are replaced, by row [B, T].
    places: the depth position of the replaced states, by row [B].
    axes: for each depth position, and each array of its state, the axes of rows and of tokens.
  """

  def __init__(self, inner: Combinator, tokens: Array, places: Array, axes: list[list[Axes]]):
    super().__init__(inner)
    self.tokens, self.places = nnx.Variable(tokens), nnx.Variable(places)
    self._axes = nnx.static(axes)

  def init(self, x: Array, tokens: TokenContext | None = None) -> PyTree:
    return self._patched(super().init(x, tokens), 0)

  def write(self, state: PyTree, layer: Layer, site: str, out: Array, **rest: Any) -> PyTree:
    after = super().write(state, layer, site, out, **rest)
    return self._patched(after, self._position(layer, site))

  def _patched(self, state: PyTree, place: int) -> PyTree:
    chosen = self.tokens[...] & (self.places[...] == place)[:, None]
    leaves, structure = jax.tree.flatten(state)
    for index, axes in enumerate(self._axes[place]):
      if axes is not None:
        clean = lax.index_in_dim(leaves[index], 0, axis=axes[0])
        mask = jnp.moveaxis(jnp.expand_dims(chosen, range(2, clean.ndim)), (0, 1), axes)
        leaves[index] = jnp.where(mask, clean, leaves[index])
    return jax.tree.unflatten(structure, leaves)


def _state_axes(combinator: Combinator) -> list[list[Axes]]:
  """Returns for each depth position, and each array of its state, the axes of rows and of tokens.

  They are found from how the shapes change with the numbers of rows and of tokens.
  """

  def states(x: Array) -> list[PyTree]:
    tokens = TokenContext(jnp.ones(x.shape[:2], jnp.int32))
    found = [combinator.init(x, tokens)]
    for layer in range(combinator.num_layers):
      for site in combinator.sites:
        views, tape = combinator.read(found[-1], layer, site)
        found.append(combinator.write(found[-1], layer, site, x, normed=views, tape=tape))
    return found

  def shapes(rows: int, tokens: int) -> list[list[tuple[int, ...]]]:
    x = jax.ShapeDtypeStruct((rows, tokens, combinator.d_model), jnp.float32)
    return [[leaf.shape for leaf in jax.tree.leaves(state)] for state in jax.eval_shape(states, x)]

  def axes(one: tuple[int, ...], other: tuple[int, ...]) -> Axes:
    sizes = list(zip(one, other, strict=True))
    known = [sizes.index(pair) for pair in zip(*_SHAPES, strict=True) if pair in sizes]
    return (known[0], known[1]) if len(known) == 2 else None

  some, others = (shapes(*shape) for shape in _SHAPES)
  return [
    [axes(one, other) for one, other in zip(*leaves, strict=True)]
    for leaves in zip(some, others, strict=True)
  ]
