"""Sharding rules: which mesh axes split which logical axis."""

import dataclasses
import difflib
import itertools

from resjax.base.sharding.mesh import MESH_AXES

# Sets of logical axes that one array may have; a mesh axis can split only one axis of each set.
_TOGETHER = (
  ("batch", "tokens", "embed"),
  ("batch", "tokens", "heads"),
  ("batch", "tokens", "mlp"),
  ("layers", "embed_param", "heads"),
  ("layers", "experts", "embed_param", "mlp"),
  ("vocab", "embed_param"),
  ("vocab", "embed"),
)


@dataclasses.dataclass(frozen=True)
class Rules:
  """For each logical axis the mesh axes that split it, the outermost first; none: it stays whole.

  Attributes:
    batch: what splits B of activations.
    tokens: what splits T of activations.
    embed: what splits D of activations.
    layers: what splits L of stacked parameters.
    embed_param: what splits D of parameters.
    vocab: what splits V of the embeddings.
    heads: what splits H·C and K·C of parameters, H and K of activations.
    mlp: what splits F of parameters and activations.
    experts: what splits the experts E of a mixture of them.
    moments: what splits an optimizer's moments besides what splits their parameters; it is no axis
      of one array, see `Layout.moments`.

  Raises:
    ValueError: a mesh axis that does not exist, or that would split one array twice.
  """

  batch: tuple[str, ...]
  tokens: tuple[str, ...]
  embed: tuple[str, ...]
  layers: tuple[str, ...]
  embed_param: tuple[str, ...]
  vocab: tuple[str, ...]
  heads: tuple[str, ...]
  mlp: tuple[str, ...]
  # Records of earlier runs have no such rules.
  experts: tuple[str, ...] = ()
  moments: tuple[str, ...] = ()

  def __post_init__(self) -> None:
    """Checks the mesh axes; lists, as JSON has them, become tuples."""
    for axis in (*LOGICAL_AXES, "moments"):
      object.__setattr__(self, axis, _mesh_axes(axis, getattr(self, axis)))
    for together in _TOGETHER:
      for one, other in itertools.combinations(together, 2):
        shared = [name for name in getattr(self, one) if name in getattr(self, other)]
        if shared:
          raise ValueError(
            f"config.sharding: {one} and {other} are axes of one array, and {shared[0]!r} cannot "
            "split both; take it from one of them"
          )

  @property
  def used(self) -> set[str]:
    """The mesh axes that split any logical axis."""
    return {name for axis in LOGICAL_AXES for name in getattr(self, axis)}


LOGICAL_AXES = tuple(field.name for field in dataclasses.fields(Rules) if field.name != "moments")


@dataclasses.dataclass(frozen=True)
class ShardingConfig:
  """A set of rules.

  Attributes:
    name: its name in config.sharding.
    rules: the rules.
  """

  name: str
  rules: Rules


def _mesh_axes(axis: str, names: object) -> tuple[str, ...]:
  """Returns the mesh axes that the rule of a logical axis names, checked."""
  if isinstance(names, str) or not isinstance(names, tuple | list):
    raise ValueError(
      f"config.sharding: {axis}={names!r} must be a tuple of mesh axes, such as ('fsdp',) or ()"
    )
  for name in names:
    if name not in MESH_AXES:
      near = difflib.get_close_matches(str(name), MESH_AXES, 1, cutoff=0.4)
      hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(MESH_AXES)}"
      raise ValueError(f"config.sharding: {axis}={names!r}: {name!r} is not a mesh axis; {hint}")
  if len(set(names)) < len(names):
    raise ValueError(f"config.sharding: {axis}={names!r} has a mesh axis twice")
  return tuple(names)


WHOLE = Rules(**dict.fromkeys(LOGICAL_AXES, ()))  # splits nothing
