"""What attention does with its scores, and which keys a query sees."""

import dataclasses

import jax
import jax.numpy as jnp

from resjax.typing import Array, wide_dtype


@dataclasses.dataclass(frozen=True)
class Scores:
  """softmax(cap(scale · q kᵀ)).

  Attributes:
    scale: None: 1 / √C.
    softcap: c > 0: cap(s) = c · tanh(s / c) (Gemma 2, arXiv 2408.00118, §2); 0: cap(s) = s.
  """

  scale: float | None = None
  softcap: float = 0.0

  def scale_for(self, head_dim: int) -> float:
    """Returns the scale for heads of width C."""
    return head_dim**-0.5 if self.scale is None else self.scale


@dataclasses.dataclass(frozen=True)
class Window:
  """Token t attends to t - size + 1..t alone; size 0: to all earlier tokens.

  Attributes:
    sizes: the different sizes that layers have.
    index: which of them this layer has, an integer that may be traced; None: the only one.
  """

  sizes: tuple[int, ...] = (0,)
  index: Array | None = None

  @property
  def size(self) -> Array | int:
    """That of this layer."""
    return self.sizes[0] if self.index is None else jnp.asarray(self.sizes)[self.index]


PLAIN = Scores()
ALL_EARLIER = Window()


def softcapped_attention(q: Array, k: Array, v: Array, mask: Array, scores: Scores) -> Array:
  """Attention in plain operations, for scores with a soft cap; statistics in float32 or wider.

  Args:
    q: queries [B, T, H, C].
    k: keys [B, S, K, C]; H is a multiple of K.
    v: values [B, S, K, C].
    mask: bool [B, 1, T, S]; every query sees a key.
    scores: scale and soft cap.

  Returns:
    [B, T, H, C] in the dtype of q.
  """
  batch, length, num_heads, width = q.shape
  grouped = q.reshape(batch, length, k.shape[2], num_heads // k.shape[2], width)
  dots = jnp.einsum("btkgc,bskc->bkgts", grouped, k, preferred_element_type=wide_dtype(q))
  capped = scores.softcap * jnp.tanh(dots * (scores.scale_for(width) / scores.softcap))
  capped = jnp.where(mask[:, :, None], capped, jnp.finfo(capped.dtype).min)
  p = jax.nn.softmax(capped, axis=-1).astype(v.dtype)
  return jnp.einsum("bkgts,bskc->btkgc", p, v).reshape(q.shape)
