"""Value mixing: how an attention's values take in values of earlier layers, and which ones."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from resjax.base import Array, PyTree
from resjax.base.sharding import Layout
from resjax.models.config import DecoderConfig
from resjax.models.depth import SiteVisit
from resjax.nn import DepthValues, GatedValues, Keys, KeyValues, Linear, ValueMixer, ValueResidual


class ValueRows(NamedTuple):
  """What differs from layer to layer: arrays with a leading axis L, or one layer's row of them.

  Attributes:
    weights: λ of a value residual that has weights [2].
    gate: the parameters of the map of a gated value residual.
    gated: whether the layer has this gate, 0 or 1.
    seen: which slots of the bank hold a layer that this one mixes [N].
    slot: the slot that the layer's own keys and values go to; N: none.
    share: λ of the mix over depth.
  """

  weights: Array | None = None
  gate: PyTree = None
  gated: Array | None = None
  seen: Array | None = None
  slot: Array | None = None
  share: Array | None = None


class ValueParameters(NamedTuple):
  """The parameters of all layers that there are, None for the others.

  Attributes:
    weights: λ of the value residual [L - 1, 2].
    gate: the maps of the gates of the last layers, stacked.
    share: λ of the mix over depth [L - 1].
  """

  weights: nnx.Param | None = None
  gate: Linear | None = None
  share: nnx.Param | None = None

  @classmethod
  def of(cls, config: DecoderConfig, layout: Layout, rngs: nnx.Rngs) -> "ValueParameters":
    """Returns the value-mixing parameters of a decoder, initialised."""
    later, gated = config.num_layers - 1, config.num_gated_layers
    std = 0.0 if config.value_gate.zero_init else config.init_std

    def gate(key: Array) -> Linear:
      return Linear(
        config.d_model, config.num_kv_heads, ("embed_param", "heads"), bias=False, std=std,
        dtype=config.dtype, layout=layout, rngs=Keys(nnx.Rngs(params=key))("value_gate"),
      )  # fmt: skip

    learns = config.value_residual == "learned" and later > 0
    starts_plain = config.value_mixing == "depth" and config.depth_values.zero_init and later > 0
    return cls(
      nnx.Param(jnp.full((later, 2), 0.5)) if learns else None,
      jax.vmap(gate)(jax.random.split(rngs.params(), gated)) if gated else None,
      nnx.Param(jnp.zeros(later)) if starts_plain else None,
    )


class ValueMixing:
  """What the attention of a decoder does with values.

  Args:
    config: the decoder.
    layout: the mesh and sharding rules of the activations.
    parameters: the parameters of all layers.
  """

  def __init__(self, config: DecoderConfig, layout: Layout, parameters: ValueParameters):
    self._config, self._layout, self._parameters = config, layout, parameters
    self._plan = _plan(config.value_sources)
    self._gate: Any
    self._gate, self._gate_rows = nnx.split(parameters.gate)

  @property
  def needs_first(self) -> bool:
    """Whether layers mix the first layer's values into their own."""
    return self._config.value_residual != "none"

  def rows(self) -> ValueRows:
    """Returns what every layer needs, with a leading axis L."""
    config, parameters = self._config, self._parameters
    rows = ValueRows()
    if config.value_residual in ("learned", "fixed"):
      later = jnp.full((config.num_layers - 1, 2), 0.5)
      if parameters.weights is not None:
        later = parameters.weights[...]
      rows = rows._replace(weights=jnp.concatenate([jnp.array([[1.0, 0.0]]), later]))
    if parameters.gate is not None:
      count = config.num_gated_layers
      rows = rows._replace(
        gate=jax.tree.map(self._padded, self._gate_rows),
        gated=self._padded(jnp.ones(count)),
      )
    if self._plan.num_slots:
      rows = rows._replace(seen=jnp.array(self._plan.seen), slot=jnp.array(self._plan.slot))
      if parameters.share is not None:
        rows = rows._replace(share=self._padded(parameters.share[...]))
    return rows

  def _padded(self, rows: Array) -> Array:
    missing = self._config.num_layers - len(rows)
    return jnp.concatenate([jnp.zeros((missing, *rows.shape[1:]), rows.dtype), rows])

  def mixers(
    self, row: ValueRows, first: Float[Array, "B T K C"] | None, sources: KeyValues | None
  ) -> tuple[ValueMixer, ...]:
    """Returns how values of earlier layers are mixed into a layer's own, in order.

    Args:
      row: the layer's.
      first: the values of the first layer; None in that layer.
      sources: the bank of keys and values of earlier layers; None if no layer reads one.
    """
    found: list[ValueMixer] = []
    if row.weights is not None and first is not None:
      found.append(ValueResidual(row.weights, first))
    if row.gated is not None and first is not None:
      gate = nnx.merge(self._gate, row.gate)
      found.append(GatedValues(gate, self._config.value_gate.gate, row.gated, first, self._layout))
    if row.seen is not None and sources is not None:
      scale = self._config.scores.scale_for(self._config.head_dim)
      found.append(DepthValues(sources, row.seen, scale, row.share))
    return tuple(found)

  def empty_bank(self, batch: int, length: int) -> KeyValues | None:
    """Returns the bank before the first layer: N slots of keys and values [N, B, T, K, C]."""
    if not self._plan.num_slots:
      return None
    config = self._config
    shape = self._plan.num_slots, batch, length, config.num_kv_heads, config.head_dim
    return self._placed(KeyValues.empty(shape, config.dtype))

  def stored(self, row: ValueRows, visits: Sequence[SiteVisit], bank: KeyValues) -> KeyValues:
    """Returns the bank with a layer's keys and mixed values stored, if a later layer reads them.

    Args:
      row: the layer's.
      visits: the visits to its sites.
      bank: keys and values of earlier layers.
    """
    (new,) = (visit.kept[0] for visit in visits if visit.site == self._config.attention_site)
    slots = jnp.arange(self._plan.num_slots)[:, None, None, None, None]
    return self._placed(jax.tree.map(lambda a, b: jnp.where(slots == row.slot, b, a), bank, new))

  def _placed(self, bank: KeyValues) -> KeyValues:
    return jax.tree.map(
      lambda a: self._layout.constrain(a, None, "batch", "tokens", "heads", None), bank
    )


class _Plan(NamedTuple):
  """Which slot of a bank holds which layer, when.

  Attributes:
    num_slots: the number of slots N.
    seen: whether layer l reads slot n [L, N].
    slot: the slot that layer l writes after it has read; N: none [L].
  """

  num_slots: int
  seen: np.ndarray
  slot: np.ndarray


def _plan(sources: Sequence[Sequence[int]]) -> _Plan:
  """Returns a plan with as few slots as there are layers that are still to be read at one time.

  Args:
    sources: for each layer the earlier layers that it reads.
  """
  last_reader = {j: layer for layer, earlier in enumerate(sources) for j in earlier}
  holds: list[int] = []  # the layer in each slot
  reads: list[set[int]] = []
  slots: list[int | None] = []
  for layer, earlier in enumerate(sources):
    reads.append({holds.index(j) for j in earlier})
    slot = None
    if layer in last_reader:
      free = [n for n, j in enumerate(holds) if last_reader[j] <= layer]
      slot = free[0] if free else len(holds)
      holds[slot : slot + 1] = [layer]
    slots.append(slot)
  count = len(holds)
  seen = np.array([[n in read for n in range(count)] for read in reads])
  return _Plan(count, seen, np.array([count if n is None else n for n in slots]))
