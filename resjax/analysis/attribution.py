"""Direct logit attribution: how much each write to the residual path adds to a logit."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.interpreters import partial_eval

from resjax.analysis.alignment import DepthPosition
from resjax.analysis.probing import ProbeConfig
from resjax.analysis.prompts import rows_of
from resjax.analysis.wrapped_path import WrappedPath, with_path
from resjax.combinators import Combinator
from resjax.combinators.base import OUTPUT, Layer, TokenContext, Views
from resjax.combinators.source import DepthState
from resjax.models.decoder import Decoder
from resjax.nn.norm import Identity
from resjax.typing import Array, PyTree

_LINEAR = 1e-5  # the most that the parts may change when the writes do, relative to themselves
_ROUNDINGS = 30  # how far their sum may be from the logit, in eps times the sum of their sizes

Rows = Mapping[str, Array]


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
    return model.head.astype(jnp.float32) @ hidden.astype(jnp.float32)

  def _by_scale(self, parameters: PyTree, rows: Rows, signs: Array, *scales: Array) -> list[Array]:
    """Returns the derivative with respect to the scale of every number written, and of heads."""

    def logit(of_writes: Array, of_heads: Array) -> Array:
      model = nnx.merge(self._graphdef, parameters)
      hidden = _output(model, rows, of_writes, None if self.no_heads else of_heads)
      towards = signs @ model.head.astype(jnp.float32)
      return _frozen_norm(model, hidden[0, self._last]) @ towards

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
    return {
      "writes": jnp.sum(by_write, axis=(1, 2, 3)),
      "heads": by_head,
      "bias": _norm_bias(model) @ (signs @ model.head.astype(jnp.float32)),
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
  """Raises a ValueError unless the parts are those of a linear read that adds up to the logit."""
  name = decoder.config.residual.name
  if not change <= _LINEAR:
    raise ValueError(_weights_depend(name))
  rounding = _ROUNDINGS * float(jnp.finfo(decoder.config.dtype).eps)
  if not abs(found.total - found.logit) <= rounding * np.abs(found.writes).sum():
    raise ValueError(
      f"{_undefined(name)}: its last read has no single weight for each source, so that the parts "
      f"add up to {found.total:.4f} in place of {found.logit:.4f}; patch states instead"
    )


def _output(decoder: Decoder, rows: Rows, of_writes: Array, of_heads: Array | None) -> Array:
  """Returns the output of the layers [B, T, D] along the frozen path.

  Args:
    decoder: the model.
    rows: the prompt.
    of_writes: what is added to the scale of each write, which is one [P, B, T, D].
    of_heads: the same for the heads of each layer [L, H]; None: nothing.
  """
  changed = with_path(decoder, _FrozenPath(decoder.combinator, of_writes))
  if of_heads is not None:
    projection = changed.layers.attention.o_proj
    kernel = projection.kernel
    by_row = jnp.repeat(1 + of_heads, kernel.shape[1] // of_heads.shape[1], axis=1)
    scaled = kernel.replace(kernel[...] * by_row[..., None])
    projection.kernel = cast(nnx.Param[Array], scaled)
  changed.final_norm = Identity()
  return changed(rows["inputs"], rows["segment_ids"], rows["positions"]).astype(jnp.float32)


class _FrozenPath(WrappedPath):
  """A residual path whose weights are fixed: derivatives follow the writes to the output alone.

  Args:
    inner: the combinator of the model.
    scales: what is added to the scale of each write, which is one [P, B, T, D].
  """

  def __init__(self, inner: Combinator, scales: Array):
    super().__init__(inner)
    self.scales = nnx.Variable(scales)

  def init(self, x: Array, tokens: TokenContext | None = None) -> PyTree:
    """See `Combinator.init`."""
    return super().init(self._scaled(lax.stop_gradient(x), 0), tokens)

  def read(self, state: PyTree, layer: Layer, site: str) -> tuple[Views, Any]:
    """See `Combinator.read`."""
    views, tape = super().read(state, layer, site)
    return lax.stop_gradient(views), tape

  def write(
    self, state: PyTree, layer: Layer, site: str, out: Array, *,
    normed: Views | None = None, tape: Any = None,
  ) -> PyTree:  # fmt: skip
    """See `Combinator.write`."""
    out = self._scaled(out, self._position(layer, site))
    return super().write(state, layer, site, out, normed=normed, tape=tape)

  def final(self, state: PyTree) -> Array:
    """See `Combinator.final`. Sources that a read weighs keep their weights."""
    read = super().final(state)
    weights = self.inner.depth_weights(state, self.num_layers, OUTPUT)
    if weights is None or not isinstance(state, DepthState):
      return read
    sources = jnp.stack(state.sources.recent)
    weighed = jnp.sum(lax.stop_gradient(weights)[..., None] * sources, axis=0).astype(read.dtype)
    return weighed + lax.stop_gradient(read - weighed)  # the value is that of the model

  def _scaled(self, out: Array, place: int) -> Array:
    return (out * (1 + self.scales[...][place])).astype(out.dtype)


def _frozen_norm(decoder: Decoder, hidden: Array) -> Array:
  """Returns the final norm of h [D] without its bias; its scale has no derivative."""
  norm = decoder.final_norm
  if isinstance(norm, Identity):  # the last read has normalised h
    return hidden
  assert norm.scale is not None  # that of a decoder has one
  if decoder.config.norm == "layernorm":
    hidden = hidden - jnp.mean(hidden)
  scale = lax.rsqrt(jnp.mean(hidden * hidden) + decoder.config.norm_eps)
  return hidden * lax.stop_gradient(scale) * norm.scale[...]


def _norm_bias(decoder: Decoder) -> Array:
  """Returns the bias of the final norm [D], zero where it has none."""
  bias = getattr(decoder.final_norm, "bias", None)
  return jnp.zeros(decoder.config.d_model) if bias is None else bias[...]
