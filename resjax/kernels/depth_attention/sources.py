"""Depth sources: the arrays that one depth read attends over."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Int, Num

from resjax.base import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sources:
  """The sources of a depth read, in order: `bank[:num_valid]`, then `recent`.

  A Python loop over layers keeps every source in `recent` and has no bank. A scan over layers needs
  arrays of a fixed shape: completed sources are in `bank`, whose slots from `num_valid` on hold
  nothing, and `recent` has only those that the current layer appended. The slots of a read
  are all slots of the bank, whether they hold a source or not, and then one per recent source.

  Attributes:
    recent: arrays [..., D].
    bank: array [N_max, ..., D] or None.
    num_valid: number of slots of `bank` that hold a source; an int or a traced scalar.
  """

  recent: tuple[Array, ...] = ()
  bank: Array | None = None
  num_valid: Array | int = 0

  def append(self, source: Float[Array, "*tokens D"]) -> "Sources":
    """Returns the sources with one more at the end."""
    return dataclasses.replace(self, recent=(*self.recent, source))

  def pop(self) -> tuple["Sources", Array]:
    """Returns the sources without the last of `recent`, and that one."""
    return dataclasses.replace(self, recent=self.recent[:-1]), self.recent[-1]

  def latest(self, count: int) -> "Sources":
    """Returns the last `count` sources in order, or all if there are fewer.

    A bank is replaced by a slice of itself with at most `count` slots.
    """
    from_bank = count - len(self.recent)
    recent = self.recent[-count:]
    if self.bank is None or from_bank <= 0:
      return Sources(recent)
    start = jnp.maximum(self.num_valid - from_bank, 0)
    size = min(from_bank, self.bank.shape[0])
    bank = lax.dynamic_slice_in_dim(self.bank, start, size)
    return Sources(recent, bank, self.num_valid - start)

  def at(self, index: Int[Array, ""] | int) -> Float[Array, "*tokens D"]:
    """Returns source `index`, counted from the first one.

    Args:
      index: position of a source of an earlier layer, which is in `bank` if there is one.
    """
    if self.bank is None:
      return self.recent[index]
    return lax.dynamic_index_in_dim(self.bank, index, keepdims=False)

  def from_end(self, back: int = 0) -> Float[Array, "*tokens D"]:
    """Returns the source `back` places before the last; the first if there are fewer."""
    if back < len(self.recent):
      return self.recent[-1 - back]
    if self.bank is None:
      return self.recent[0]
    return self.at(jnp.maximum(self.num_valid - 1 - (back - len(self.recent)), 0))

  def in_slot_order(self, rows: Num[Array, "N ..."]) -> Num[Array, "slots ..."]:
    """Turns one row per source into one row per slot: the slots of `bank`, then of `recent`.

    Args:
      rows: row j belongs to source j, counted from the first one.

    Returns:
      The rows; slots that hold nothing have arbitrary ones.
    """
    if self.bank is None:
      return rows[: len(self.recent)]
    recent = lax.dynamic_slice_in_dim(rows, self.num_valid, len(self.recent))
    return jnp.concatenate([rows[: self.bank.shape[0]], recent])

  def in_source_order(self, rows: Num[Array, "slots ..."], count: int) -> Num[Array, "N ..."]:
    """Turns one row per slot into one row per source, counted from the first one.

    Args:
      rows: one per slot: the slots of `bank`, then of `recent`.
      count: N, the number of sources at the end of depth.

    Returns:
      The rows; zeros for sources that do not exist yet.
    """
    size = 0 if self.bank is None else self.bank.shape[0]
    filled = self.valid().astype(rows.dtype).reshape(-1, *(1,) * (rows.ndim - 1)) * rows
    ordered = jnp.zeros((count, *rows.shape[1:]), rows.dtype).at[:size].set(filled[:size])
    start = 0 if self.bank is None else self.num_valid
    return lax.dynamic_update_slice_in_dim(ordered, filled[size:], start, 0)

  def groups(self) -> tuple[Float[Array, "_ *tokens D"], ...]:
    """Returns arrays [n, ..., D] that together hold all slots, the bank first."""
    bank = () if self.bank is None else (self.bank,)
    return (*bank, *(source[None] for source in self.recent))

  def valid(self) -> Bool[Array, " slots"]:
    """Returns which slots hold a source."""
    recent = jnp.ones(len(self.recent), bool)
    if self.bank is None:
      return recent
    slots = jnp.arange(self.bank.shape[0], dtype=jnp.int32)
    return jnp.concatenate([slots < jnp.asarray(self.num_valid, jnp.int32), recent])

  def counts(self, last_valid: Bool[Array, ""] | bool = True) -> Int[Array, "2"]:
    """Returns int32 numbers for `Operands`: number of valid slots of the bank, and `last_valid`."""
    size = 0 if self.bank is None else self.bank.shape[0]
    num_valid = jnp.minimum(self.num_valid, size)  # a kernel would read past the end
    return jnp.stack([jnp.asarray(n, jnp.int32) for n in (num_valid, last_valid)])

  def check_alike(self) -> None:
    """Raises ValueError if there is no source, or if sources differ in shape or dtype."""
    arrays = [*self.recent, *([] if self.bank is None else [self.bank[0]])]
    if not arrays:
      raise ValueError("sources: there are none; depth attention needs at least one")
    shape, dtype = arrays[0].shape, arrays[0].dtype
    for array in arrays[1:]:
      if array.shape != shape or array.dtype != dtype:
        raise ValueError(
          f"sources differ: {dtype}{list(shape)} and {array.dtype}{list(array.shape)}; "
          "all need one shape [..., D] and dtype"
        )

  @property
  def shape(self) -> tuple[int, ...]:
    """The shape [..., D] of one source."""
    return self.recent[0].shape if self.bank is None else self.bank.shape[1:]


def make_bank(
  sources: tuple[Float[Array, "*tokens D"], ...], size: int
) -> Float[Array, "{size} *tokens D"]:
  """Returns a bank whose first slots are `sources`, the others zero."""
  bank = jnp.broadcast_to(jnp.zeros_like(sources[0]), (size, *sources[0].shape))
  return store(bank, 0, sources)


def store(
  bank: Float[Array, "N *tokens D"],
  slot: Int[Array, ""] | int,
  sources: tuple[Float[Array, "*tokens D"], ...],
) -> Float[Array, "N *tokens D"]:
  """Returns `bank` with `sources` written to the slots from `slot` on."""
  for offset, source in enumerate(sources):
    bank = lax.dynamic_update_index_in_dim(bank, source, slot + offset, 0)
  return bank
