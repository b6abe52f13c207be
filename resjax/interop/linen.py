"""Residual combinators in Flax Linen models, through `flax.nnx.bridge`."""

from collections.abc import Mapping
from typing import Any

import jax
from flax import linen, nnx
from flax.core import meta
from flax.core.scope import subtract_filters

from resjax import combinators
from resjax.base import Array, PyTree
from resjax.models import Initializer, branch_init, run_blocks
from resjax.models import ResidualStream as ResidualStream


def combinator(name: str, **sizes_and_options: Any) -> combinators.Combinator:
  """Returns a combinator whose parameters belong to the Linen module that calls this.

    class Model(linen.Module):
      @linen.compact
      def __call__(self, x):
        c = combinator("attn_res", num_layers=12, d_model=768)
        state = c.init(x)  # The rest is as in `resjax.combinators.Combinator`.

  The parameters lie in the collection `params` of that module under `combinator`, as plain arrays,
  and are drawn with the key `params`. Call it once, in a compact method, and loop over layers in
  Python. A module with `setup` takes a `Residual`.

  Args:
    name: one of `combinators.names()`.
    **sizes_and_options: the arguments of `combinators.build`, without rngs.

  Raises:
    ValueError: The name or an option is unknown, or an option is out of range.
  """
  lifted = nnx.bridge.to_linen(
    combinators.build, name, name="combinator", metadata_fn=None, **sizes_and_options
  )
  # One call returns the bound combinator itself. If each read and write were a call of its own,
  # each would make the combinator anew.
  return lifted(nnx_method=lambda bound: bound)


class Residual(linen.Module):
  """A combinator as a Linen module: called on embeddings, it returns a `ResidualStream`.

    class Model(linen.Module):
      def setup(self):
        self.residual = Residual("attn_res", num_layers=12, d_model=768)

      def __call__(self, x):
        x = self.residual(x)  # The rest is as in `resjax.models.residual_stream`.

  Attributes:
    kind: one of `combinators.names()`.
    num_layers: L.
    d_model: D.
    sites: the names of the sites of a layer, in their order.
    options: the combinator's own options, see `combinators.options`.
    scaled_init: whether kernels of branches start with `branch_init`, see `combinators.build`.
  """

  kind: str
  num_layers: int
  d_model: int
  sites: tuple[str, ...] = ("attention", "mlp")
  options: Mapping[str, Any] = linen.FrozenDict()
  scaled_init: bool = False

  @linen.compact
  def __call__(self, x: Array, tokens: combinators.TokenContext | None = None) -> ResidualStream:
    """Returns the stream before the first site, see `ResidualStream.start`."""
    made = combinator(self.kind, scaled_init=self.scaled_init, **self._arguments())
    return ResidualStream.start(made, x, tokens)

  def branch_init(self, init: Initializer) -> Initializer:
    """Returns the initializer for kernels of branches, see `residual_stream.branch_init`."""
    made = nnx.eval_shape(
      lambda: combinators.build(self.kind, rngs=nnx.Rngs(0), scaled_init=True, **self._arguments())
    )
    return branch_init(made, init)

  def _arguments(self) -> dict[str, Any]:
    sizes = {"num_layers": self.num_layers, "d_model": self.d_model, "sites": tuple(self.sites)}
    return sizes | dict(self.options)


class Layers(linen.Module):
  """L equal blocks that a `ResidualStream` runs through, as a scan; for what `linen.scan` does.

    x = Layers(Block(config), remat="full")(x)

  The variables are as with `linen.scan(Block, variable_axes={"params": 0, ...})`: the block's,
  with a leading axis L, in every collection. Where a collection is mutable, every layer changes its
  row of it (batch statistics, what is sown), without gradients. Every random key but `params` is
  split into a part for each layer, as with `split_rngs`, so dropout draws a mask per layer; a
  layer that is computed again for the reverse pass draws the same.

  Attributes:
    block: a module that is called as block(stream, *context), and returns the stream after it.
    remat: what a layer keeps for the reverse pass, see `resjax.models.depth.run`.
    partition_name: the name of the axis L in the metadata of `linen.with_partitioning`.
  """

  block: linen.Module
  remat: str = "none"
  partition_name: str | None = None

  @linen.compact
  def __call__(self, stream: ResidualStream, *context: PyTree) -> ResidualStream:
    """Returns the stream after all layers; context: arrays that all of them read."""
    block = self.block.clone(parent=None)
    scope, num_layers = self.scope, stream.combinator.num_layers
    assert scope is not None  # Linen calls bound modules alone
    names = [name for name in scope.rngs if name != "params"]
    keys = {name: jax.random.split(self.make_rng(name), num_layers) for name in names}
    if self.is_initializing():
      drawing = {**keys, "params": jax.random.split(self.make_rng("params"), num_layers)}
      drawn = jax.vmap(lambda keys: block.init(keys, stream, *context))(drawing)
      self._put(meta.add_axis(drawn, 0, {meta.PARTITION_NAME: self.partition_name}))
    changing = subtract_filters(scope.mutable, "params")

    def run_block(
      row: PyTree, stream: ResidualStream, *context: PyTree
    ) -> tuple[ResidualStream, PyTree]:
      variables, data = row
      rngs = {name: jax.random.wrap_key_data(data[name], impl=impls[name]) for name in data}
      after: Any = block.apply(variables, stream, *context, rngs=rngs, mutable=changing)
      return after

    impls = {name: jax.random.key_impl(key) for name, key in keys.items()}
    rows = linen.unbox(self.variables), jax.tree.map(jax.random.key_data, keys)
    stream, changed = run_blocks(stream, rows, run_block, *context, remat=self.remat)
    if not self.is_initializing():  # as it was drawn
      self._put(changed)
    return stream

  def _put(self, collections: Mapping[str, Mapping[str, PyTree]]) -> None:
    """Keeps variables by collection and name."""
    for collection, stacked in collections.items():
      for name, value in stacked.items():
        self.put_variable(collection, name, value)
