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
  config, layout, combinator = decoder.config, decoder.layout, decoder.combinator
  no_heads = _no_heads(decoder)
  rows = layout.split(rows_of([tokens], layout))
  graphdef, parameters = nnx.split(decoder)
  shape = 1 + combinator.num_sublayers, *rows["inputs"].shape, config.d_model
  rng = np.random.default_rng(0)
  moved = layout.copy(rng.normal(size=shape).astype(np.float32))

  @functools.partial(jax.jit, out_shardings=layout.everywhere)
  def logits(parameters: PyTree, rows: Rows) -> Array:
    model = nnx.merge(graphdef, parameters)
    hidden = model(rows["inputs"], rows["segment_ids"], rows["positions"])[0, len(tokens) - 1]
    return model.head.astype(jnp.float32) @ hidden.astype(jnp.float32)

  def parts_of_writes(parameters: PyTree, rows: Rows, signs: Array, *scales: Array) -> list[Array]:
    def logit(of_writes: Array, of_heads: Array) -> Array:
      model = nnx.merge(graphdef, parameters)
      hidden = _output(model, rows, of_writes, None if no_heads else of_heads)
      towards = signs @ model.head.astype(jnp.float32)
      return _frozen_norm(model, hidden[0, len(tokens) - 1]) @ towards

    return jax.grad(logit, (0, 1))(*scales)

  def change(
    parameters: PyTree, rows: Rows, signs: Array, of_writes: Array, of_heads: Array, moved: Array
  ) -> Array:
    # The parts change along with the writes only where a weight depends on them. Two reverse passes
    # tell: kernels have a rule for the reverse pass alone.
    def along(scale: Array) -> Array:
      return jnp.vdot(parts_of_writes(parameters, rows, signs, scale, of_heads)[0], moved)

    return jnp.linalg.norm(jax.grad(along)(of_writes))

  @functools.partial(jax.jit, out_shardings=layout.everywhere)
  def parts(parameters: PyTree, rows: Rows, signs: Array, moved: Array) -> dict[str, Array]:
    by_write, by_head = parts_of_writes(parameters, rows, signs, *scales)
    changed = change(parameters, rows, signs, *scales, moved) if may_change else 0.0
    model = nnx.merge(graphdef, parameters)
    return {
      "writes": jnp.sum(by_write, axis=(1, 2, 3)),
      "heads": by_head,
      "bias": _norm_bias(model) @ (signs @ model.head.astype(jnp.float32)),
      "change": changed / jnp.linalg.norm(by_write),
    }

  scales = jnp.zeros(shape), jnp.zeros((config.num_layers, config.num_heads))
  signs = np.zeros(config.vocab_size, np.float32)
  may_change = _depends(change, parameters, rows, signs, *scales, moved)
  if may_change and not combinator.source_names():
    raise ValueError(_weights_depend(config.residual.name))
  whole = jax.device_get(logits(parameters, rows))
  if not np.isfinite(whole).all():
    raise ValueError("the logits of the model are not finite; take one whose parameters are")
  targets = targets or (int(np.argmax(whole)),)
  for target, sign in zip(targets, (1, -1), strict=False):
    signs[target] += sign
  found = jax.device_get(parts(parameters, rows, layout.copy(signs), moved))
  made = Attribution(
    positions=ProbeConfig(every="site").positions(combinator),
    writes=found["writes"],
    bias=float(found["bias"]),
    heads=None if no_heads else found["heads"],
    no_heads=no_heads,
    logit=float(whole @ signs),
    tokens=np.asarray(tokens),
    targets=tuple(targets),
  )
  _check(decoder, made, float(found["change"]))
  return made


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


def _no_heads(decoder: Decoder) -> str:
  """Returns why the heads of an attention have no parts of their own; empty if they have."""
  return "the sum of the heads is normalised" if decoder.config.post_norm else ""


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
