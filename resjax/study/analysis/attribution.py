"""Direct logit attribution: how much each write to the residual path adds to a logit."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.interpreters import partial_eval

from resjax.base import Array, PyTree
from resjax.models import Decoder
from resjax.study.analysis import frozen_path
from resjax.study.analysis.alignment import DepthPosition
from resjax.study.analysis.frozen_path import Rows
from resjax.study.analysis.probing import ProbeConfig
from resjax.study.analysis.prompts import rows_of

_LINEAR = 1e-5  # the most that the parts may change when the writes do, relative to themselves
_ROUNDINGS = 30  # how far their sum may be from the logit, in eps times the sum of their sizes


# Parts must add up to a logit that another product gives; accelerators round its factors otherwise.
_exactly = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)


@dataclasses.dataclass(frozen=True)
class Attribution:
  """The parts of a logit, or of the difference of two, that the writes of a decoder make up.

  The final norm is linear once its scale is fixed: with the scale s of the actual state, and as far
  as the output h of the layers is Σ_i W_i w_i over the writes w_i, the logit is the sum over i of
  u · norm_s(W_i w_i), where u is the output embedding of the token; and of the bias of the norm.
  The effective weights W_i are those that the combinator gives each write on its way to the output,
  as they are for this text; a learned gate or a softmax over sources is held fixed, like s.

  Attributes:
    positions: the embedding, and the places behind every site: where each write ended up.
    writes: the part of each write, by position [P].
    bias: the part of the bias of the final norm.
    heads: the parts of the heads of every attention, without its bias [L, H]; None where a head
      has no part of its own.
    no_heads: why there are none; empty if there are.
    logit: the logit, or the difference of two, that the model gives, without a soft cap.
    tokens: the prompt [T].
    targets: the token whose logit it is, and the one whose logit is taken off, if any.
  """

  positions: tuple[DepthPosition, ...]
  writes: np.ndarray
  bias: float
  heads: np.ndarray | None
  no_heads: str
  logit: float
  tokens: np.ndarray
  targets: tuple[int, ...]

  @property
  def total(self) -> float:
    """The sum of all parts, which is the logit up to rounding."""
    return float(self.writes.sum() + self.bias)


def attribute(decoder: Decoder, tokens: np.ndarray, targets: tuple[int, ...] = ()) -> Attribution:
  """Returns the parts of the logit of a token after the last one of a prompt.

  Args:
    decoder: any decoder, sharded or not, whose combinator is a linear read of what was written; or
      reads it by weights that `Combinator.depth_weights` gives.
    tokens: the prompt [T].
    targets: one token; or two, for the logit of the first less that of the second; empty: the most
      probable token.

  Raises:
    ValueError: The output is not linear in the writes, or both targets are the same.
  """
  if len(set(targets)) < len(targets):
    raise ValueError(f"token {targets[0]} less itself is no difference; give two other answers")
  combinator, residual = decoder.combinator, decoder.config.residual.name
  prompt = _Prompt(decoder, tokens)
  weights_may_change = prompt.weights_may_change()
  if weights_may_change and not combinator.source_names():
    raise ValueError(_weights_depend(residual))
  logits = prompt.logits()
  if not np.isfinite(logits).all():
    raise ValueError("the logits of the model are not finite; take one whose parameters are")
  targets = targets or (int(np.argmax(logits)),)
  signs = np.zeros_like(logits)
  for target, sign in zip(targets, (1, -1), strict=False):
    signs[target] += sign
  found = prompt.parts(signs, weights_may_change)
  made = Attribution(
    positions=ProbeConfig(every="site").positions(combinator),
    writes=found["writes"],
    bias=float(found["bias"]),
    heads=found["heads"] if prompt.no_heads == "" else None,
    no_heads=prompt.no_heads,
    logit=float(logits @ signs),
    tokens=np.asarray(tokens),
    targets=tuple(targets),
  )
  _check(decoder, made, float(found["change"]))
  return made


class _Prompt:
  """The logits after the last token of a prompt, and their derivatives with respect to writes.

  Args:
    decoder: the model.
    tokens: the prompt [T].

  Attributes:
    no_heads: why the heads of an attention have no parts; empty if they have.
  """

  def __init__(self, decoder: Decoder, tokens: np.ndarray):
    config, layout = decoder.config, decoder.layout
    self.no_heads = "the sum of the heads is normalised" if config.post_norm else ""
    self._layout, self._last = layout, len(tokens) - 1
    self._graphdef, parameters = nnx.split(decoder)
    rows = layout.split(rows_of([tokens], layout))
    self._arguments = parameters, rows
    shape = 1 + decoder.combinator.num_sublayers, *rows["inputs"].shape, config.d_model
    self._scales = jnp.zeros(shape), jnp.zeros((config.num_layers, config.num_heads))
    moved = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    self._moved = layout.copy(moved)  # one change of all writes
    self._no_token = np.zeros(config.vocab_size, np.float32)

  def logits(self) -> np.ndarray:
    """Returns the logits [V] that the model gives."""
    return self._run(self._logits)

  def weights_may_change(self) -> bool:
    """Returns whether the weight of a write may depend on another write."""
    arguments = *self._arguments, self._no_token, *self._scales, self._moved
    return _depends(self._change, *arguments)

  def parts(self, signs: np.ndarray, weights_may_change: bool) -> dict[str, np.ndarray]:
    """Returns the parts of a sum of logits, and how much they change along with the writes.

    Args:
      signs: the factor of every logit in the sum [V].
      weights_may_change: see the method of this name.
    """
    parts = functools.partial(self._parts, weights_may_change)
    return self._run(parts, self._layout.copy(signs), self._moved)

  def _run(self, function: Callable[..., PyTree], *arguments: Array) -> Any:
    compiled = jax.jit(function, out_shardings=self._layout.everywhere)
    return jax.device_get(compiled(*self._arguments, *arguments))

  def _logits(self, parameters: PyTree, rows: Rows) -> Array:
    model = nnx.merge(self._graphdef, parameters)
    hidden = model(rows["inputs"], rows["segment_ids"], rows["positions"])[0, self._last]
    return _exactly(model.head.astype(jnp.float32), hidden.astype(jnp.float32))

  def _by_scale(self, parameters: PyTree, rows: Rows, signs: Array, *scales: Array) -> list[Array]:
    """Returns the derivatives to the scales of writes [P, B, T, D] and heads [L, H]."""

    def logit(of_writes: Array, of_heads: Array) -> Array:
      model = nnx.merge(self._graphdef, parameters)
      hidden = frozen_path.output(model, rows, of_writes, None if self.no_heads else of_heads)
      towards = _exactly(signs, model.head.astype(jnp.float32))
      return _exactly(frozen_path.norm(model, hidden[0, self._last]), towards)

    return jax.grad(logit, (0, 1))(*scales)

  def _change(
    self, parameters: PyTree, rows: Rows, signs: Array, of_writes: Array, of_heads: Array,
    moved: Array,
  ) -> Array:  # fmt: skip
    # The parts change along with the writes only where a weight depends on them. Two reverse passes
    # tell: kernels have a rule for the reverse pass alone.
    def along(scale: Array) -> Array:
      return jnp.vdot(self._by_scale(parameters, rows, signs, scale, of_heads)[0], moved)

    return jnp.linalg.norm(jax.grad(along)(of_writes))

  def _parts(
    self, may_change: bool, parameters: PyTree, rows: Rows, signs: Array, moved: Array
  ) -> dict[str, Array]:
    arguments = parameters, rows, signs, *self._scales
    by_write, by_head = self._by_scale(*arguments)
    changed = self._change(*arguments, moved) if may_change else jnp.zeros(())
    model = nnx.merge(self._graphdef, parameters)
    head = model.head.astype(jnp.float32)
    return {
      "writes": jnp.sum(by_write, axis=(1, 2, 3)),
      "heads": by_head,
      "bias": _exactly(frozen_path.norm_bias(model), _exactly(signs, head)),
      "change": changed / jnp.linalg.norm(by_write),
    }


def _depends(function: Callable[..., Array], *arguments: PyTree) -> bool:
  """Returns whether a value depends on arguments, as far as derivatives tell without numbers.

  A rule of its own, as kernels have, counts as a dependence, also where its derivative is 0.
  """
  traced = jax.make_jaxpr(function)(*arguments)
  _, used = partial_eval.dce_jaxpr(traced.jaxpr, [True])
  return any(used)


def _undefined(name: str) -> str:
  return f"the parts of a logit are not defined for residual.name={name!r}"


def _weights_depend(name: str) -> str:
  return (
    f"{_undefined(name)}: the weights of what a site wrote depend on what others wrote; patch "
    "states instead"
  )


def _check(decoder: Decoder, found: Attribution, change: float) -> None:
  """Raises a ValueError unless the last read is linear and its parts add up to the logit."""
  name = decoder.config.residual.name
  if not change <= _LINEAR:
    raise ValueError(_weights_depend(name))
  rounding = _ROUNDINGS * float(jnp.finfo(decoder.config.dtype).eps)
  if not abs(found.total - found.logit) <= rounding * np.abs(found.writes).sum():
    raise ValueError(
      f"{_undefined(name)}: its last read has no single weight for each source, so that the parts "
      f"add up to {found.total:.4f} in place of {found.logit:.4f}; patch states instead"
    )
