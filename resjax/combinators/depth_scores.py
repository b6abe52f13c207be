"""How a depth read scores its sources and weighs them, and the read itself in plain JAX."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from resjax.base import Array, aligned, wide_dtype
from resjax.combinators.checks import check_choice, check_flag, check_option
from resjax.combinators.numerics import project, recomputed, rms_normalized
from resjax.kernels.depth_attention import Sources, depth_sum

Flag = bool | Array
Reader = Mapping[str, Any]  # the parameters of one read, arrays by name, see `DepthScores.shapes`

_softmax = functools.partial(jax.nn.softmax, axis=0)
_WEIGHTS: Mapping[str, Callable[[Array], Array]] = {
  "softmax": _softmax, "sigmoid": jax.nn.sigmoid, "static": _softmax,
}  # fmt: skip
_WORDS = {
  "key_norm": ("gain", "plain", "none"),
  "scale": ("one", "rsqrt", "learned"),
  "weights": tuple(_WEIGHTS),
}


@dataclasses.dataclass(frozen=True)
class DepthScores:
  """The rule of a read: s_n = c q · k_n / τ, a_n = softmax_n(s), h = Σ_n a_n u_n over sources v_n.

  Kernels compute it for every scale and head count where keys are normalised, with a gain or
  without; all else is plain JAX, here.

  Attributes:
    width: D.
    num_heads: H; head a takes its D / H channels of q, k and u, and has weights of its own.
    eps: added to the mean square of a source in its norm.
    value_norm: whether u = RMS(v), where a lone source stays v, as in Inkling 2; else u = v.
    key_norm: k = γ ⊙ RMS(v) for `gain`, RMS(v) for `plain`, v for `none`.
    key_rank: r, the number of the last channels of v of which k is made, its RMS included; 0: D.
    scale: c = 1 for `one`, 1/√C for `rsqrt`, C channels of a head's key; `learned`: exp(t), t = 0.
    temperature: τ > 0.
    weights: `softmax`; `sigmoid`: a = σ(s); `static`: a softmax of learned numbers in place of s.
    dynamic_query: whether q = w + W RMS(z) for the newest source z, with a matrix W.
    window: the number of the newest sources that are read besides the first; 0: all.
  """

  width: int = 1
  num_heads: int = 1
  eps: float = 1e-6
  value_norm: bool = False
  key_norm: str = "gain"
  key_rank: int = 0
  scale: str = "one"
  temperature: float = 1.0
  weights: str = "softmax"
  dynamic_query: bool = False
  window: int = 0

  def check(self) -> None:
    """Raises a ValueError if an option is out of range or does not go with another one."""
    for name, words in _WORDS.items():
      value = getattr(self, name)
      check_choice(name, value, words)
    for name in ("value_norm", "dynamic_query"):
      check_flag(name, getattr(self, name))
    in_range = 0 <= self.key_rank <= self.width
    check_option("key_rank", self.key_rank, in_range, f"0 (all channels)..{self.width}")
    check_option("window", self.window, self.window >= 0, "window >= 0 (0: all sources)")
    in_range = 0 < self.temperature < float("inf")
    check_option("temperature", self.temperature, in_range, "temperature > 0")
    fits = not self.key_rank or self.num_heads == 1
    check_option("key_rank", self.key_rank, fits, f"0 with num_heads={self.num_heads}")
    if self.weights == "static":
      of_queries = ("num_heads", "key_norm", "key_rank", "scale", "temperature", "dynamic_query")
      for name, value in self._changed(of_queries).items():
        raise ValueError(f"weights='static' has no queries and keys; leave out {name}={value!r}")

  def _changed(self, names: tuple[str, ...]) -> dict[str, Any]:
    given = {name: getattr(self, name) for name in names}
    return {name: value for name, value in given.items() if value != getattr(DepthScores, name)}

  @property
  def plain(self) -> str:
    """The first option that no kernel covers, as `name=value`; empty: kernels cover all."""
    changed = self._changed(("value_norm", "key_rank", "weights", "dynamic_query", "window"))
    if self.key_norm == "none":
      changed["key_norm"] = self.key_norm
    return next((f"{name}={value!r}" for name, value in changed.items()), "")

  @property
  def is_neutral(self) -> bool:
    """Whether a read with fresh parameters is parallel to the sum of all sources."""
    return not self.value_norm and not self.window

  @property
  def key_width(self) -> int:
    """The number of channels of a key."""
    return self.key_rank or self.width

  def shapes(self, num_sources: int = 0) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a reader's parameters by name.

    They are query (w), key_scale (γ), log_scale (t), query_weight (W), and for `static` weights
    logit (s), of which a read uses one per source. All start at zero, but key_scale at one.
    """
    if self.weights == "static":
      return {"logit": (num_sources,)}
    shapes: dict[str, tuple[int, ...]] = {"query": (self.key_width,)}
    if self.key_norm == "gain":
      shapes["key_scale"] = (self.key_width,)
    if self.scale == "learned":
      shapes["log_scale"] = ()
    if self.dynamic_query:
      shapes["query_weight"] = (self.width, self.key_width)
    return shapes

  def folded(self, reader: Reader) -> dict[str, Any]:
    """Returns the query, times c, and the gain of keys or None, as kernels take them."""
    return {"query": self._scaled(reader, reader["query"]), "key_scale": reader.get("key_scale")}

  def _scaled(self, reader: Reader, query: Array) -> Array:
    """Returns the query q times the scale c / τ of all scores."""
    if self.temperature != 1:
      query = query / self.temperature
    if self.scale == "rsqrt":
      return query * (self.key_width // self.num_heads) ** -0.5
    if self.scale == "learned":
      return query * aligned(jnp.exp(reader["log_scale"])[..., None], query)
    return query

  def weigh(self, reader: Reader, sources: Sources, last_valid: Flag = True) -> Array:
    """Returns the weights of all slots by head, [slots, ..., H]; 0 for those that do not count.

    Args:
      reader: the parameters of the read.
      sources: what is read.
      last_valid: whether the last of `Sources.recent` counts; may be traced.
    """
    if self.weights == "static":
      logits = sources.in_slot_order(reader["logit"])
      logits = logits.reshape(-1, *(1,) * len(sources.shape))
    else:
      query = self._query(reader, sources)
      logits = jnp.concatenate([self.logits(query, group) for group in sources.groups()])
    valid = self._valid(sources, last_valid).reshape(-1, *(1,) * (logits.ndim - 1))
    return _WEIGHTS[self.weights](jnp.where(valid, logits, -jnp.inf))

  def _valid(self, sources: Sources, last_valid: Flag) -> Array:
    """Returns which slots count, bool [slots]."""
    valid = sources.valid()
    valid = valid.at[-1].set(valid[-1] & last_valid)
    if not self.window:
      return valid
    number = jnp.cumsum(valid)  # of a source, counted from 1
    return valid & ((number == 1) | (number > number[-1] - self.window))

  def _query(self, reader: Reader, sources: Sources) -> Array:
    """Returns c γ ⊙ q, [K], or [..., K] where it depends on the token."""
    query = reader["query"]
    if self.dynamic_query:
      newest = rms_normalized(sources.from_end(), self.eps)
      query = aligned(query, newest) + project("...d,dk->...k", newest, reader["query_weight"])
    query = self._scaled(reader, query)
    return query * aligned(reader["key_scale"], query) if "key_scale" in reader else query

  def logits(self, query: Array, group: Array) -> Array:
    """Returns q · k per head [n, ..., H] for sources [n, ..., D]."""
    wide = group[..., -self.key_width :].astype(wide_dtype(group))
    products = (wide * aligned(query, wide)).reshape(*wide.shape[:-1], self.num_heads, -1)
    dots = jnp.sum(products, axis=-1)
    return dots if self.key_norm == "none" else dots * self._inverse_rms(wide)

  def _inverse_rms(self, wide: Array) -> Array:
    return jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)

  def read(self, reader: Reader, sources: Sources, last_valid: Flag = True) -> Array:
    """Returns h [..., D]; the reverse pass stores only the sources and parameters for it.

    Args:
      reader: the parameters of the read.
      sources: what is read.
      last_valid: as in `weigh`.
    """
    return recomputed(self._read)(reader, sources, last_valid)

  def _read(self, reader: Reader, sources: Sources, last_valid: Flag) -> Array:
    weights = self.weigh(reader, sources, last_valid)
    if self.value_norm:  # a weight carries the norm, so that no other array [D] exists
      groups = [group.astype(wide_dtype(group)) for group in sources.groups()]
      inverse_rms = jnp.concatenate([self._inverse_rms(group) for group in groups])
      is_alone = jnp.sum(self._valid(sources, last_valid)) == 1
      weights = weights * jnp.where(is_alone, 1.0, inverse_rms)
    if self.num_heads > 1:
      weights = jnp.repeat(weights, self.width // self.num_heads, axis=-1)
    return depth_sum(sources, weights)
