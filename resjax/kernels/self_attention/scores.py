"""What attention does with its scores, and which keys a query sees."""

import dataclasses

import jax
import jax.numpy as jnp

from resjax.base import Array, wide_dtype


@dataclasses.dataclass(frozen=True)
class Scores:
  """The scale and the soft cap in softmax(cap(scale · q kᵀ)).

  Attributes:
    scale: the factor on q kᵀ; None: 1 / √C.
    softcap: c > 0: cap(s) = c · tanh(s / c) (Gemma 2, arXiv 2408.00118, §2); 0: cap(s) = s.
  """

  scale: float | None = None
  softcap: float = 0.0

  def scale_for(self, head_dim: int) -> float:
    """Returns the scale for heads of width `head_dim`."""
    return head_dim**-0.5 if self.scale is None else self.scale


@dataclasses.dataclass(frozen=True)
class Window:
  """A window of `size` tokens: token t attends to tokens t - size + 1..t; size 0: to all of 0..t.

  Layers of a scan are one program, so a layer chooses its window by an index that may be traced.

  Attributes:
    sizes: the different sizes that the layers have, in tokens.
    index: which of them this layer has, an integer; None: the only one.
  """

  sizes: tuple[int, ...] = (0,)
  index: Array | None = None

  @property
  def size(self) -> Array | int:
    """The size of this layer's window, in tokens."""
    return self.sizes[0] if self.index is None else jnp.asarray(self.sizes)[self.index]


PLAIN = Scores()
ALL_EARLIER = Window()


def masked_attention(q: Array, k: Array, v: Array, mask: Array, scores: Scores) -> Array:
  """Attention in plain operations, with a soft cap or without; softmax in float32 or wider.

  Args:
    q: the queries [B, T, H, C].
    k: the keys [B, S, K, C]; H is a multiple of K.
    v: the values [B, S, K, C].
    mask: which keys a query sees, bool [B, 1, T, S]; every query sees at least one.
    scores: scale and soft cap.

  Returns:
    The output of the heads [B, T, H, C] in the dtype of q.
  """
  batch, length, num_heads, width = q.shape
  grouped = q.reshape(batch, length, k.shape[2], num_heads // k.shape[2], width)
  dots = jnp.einsum("btkgc,bskc->bkgts", grouped, k, preferred_element_type=wide_dtype(q))
  scaled, cap = dots * scores.scale_for(width), scores.softcap
  capped = cap * jnp.tanh(scaled / cap) if cap else scaled
  capped = jnp.where(mask[:, :, None], capped, jnp.finfo(capped.dtype).min)
  p = jax.nn.softmax(capped, axis=-1).astype(v.dtype)
  return jnp.einsum("bkgts,bskc->btkgc", p, v).reshape(q.shape)
