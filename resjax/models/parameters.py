"""The parameters of a decoder, before any of them exists."""

import dataclasses

from flax import nnx

from resjax.models.config import DecoderConfig
from resjax.models.decoder import Decoder
from resjax.sharding import Layout


@dataclasses.dataclass(frozen=True)
class Parameter:
  """Shape and logical axes of a parameter; one that is stacked has `layers` first."""

  shape: tuple[int, ...]
  axes: tuple[str | None, ...]

  @classmethod
  def of(cls, variable: nnx.Variable) -> "Parameter":
    """Returns those of a variable; one without axes is whole on every device."""
    shape = tuple(variable.shape)
    own = variable.get_metadata().get("axes", (None,) * len(shape))
    stacked = ("layers", *[None] * len(shape))[: len(shape) - len(own)]
    return cls(shape, (*stacked, *own))


def parameters(config: DecoderConfig, layout: Layout) -> dict[str, Parameter]:
  """Returns every parameter of a decoder by its path; no array is made."""
  model = nnx.eval_shape(lambda: Decoder(config, layout=layout, rngs=nnx.Rngs(0)))
  flat = nnx.to_flat_state(nnx.state(model))
  return {"/".join(map(str, path)): Parameter.of(variable) for path, variable in flat}
