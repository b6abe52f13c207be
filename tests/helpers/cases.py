"""Option sets of every combinator, which the conformance tests walk."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tests.helpers.toy import L


@dataclasses.dataclass(frozen=True, eq=False)  # hashed by identity
class Case:
  """One combinator with options, and what is known about its gradients.

  Attributes:
    name: of the registry.
    options: without sizes.
    dead: parameter -> rows whose gradient is exactly zero, whatever the values are.
    learns_at_init: parameters whose every row but the dead ones has a gradient at init.
  """

  name: str
  options: Mapping[str, Any]
  dead: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
  learns_at_init: tuple[str, ...] = ()

  def __str__(self):
    return "-".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])


_FIRST = {"query": ((0, 0),), "key_scale": ((0, 0),)}  # the first read has one source
_QUERIES = ("query", "final_query")

BLOCKS = tuple(
  Case("block_attn_res", {"layers_per_block": length}, _FIRST, _QUERIES)
  for length in range(1, L + 1)
)
GATES = (
  Case("gate", {"granularity": "layer"}, learns_at_init=("bias",)),
  Case("gate", {"granularity": "depth_mixture"}, learns_at_init=("bias",)),
  Case("gate", {"granularity": "depth_mixture", "kappa": 0.5}, learns_at_init=("bias",)),
  Case("gate", {"granularity": "token"}, learns_at_init=("weight", "bias")),
  Case("gate", {"granularity": "channel"}, learns_at_init=("weight", "bias")),
)
FULL = Case("attn_res", {}, _FIRST, _QUERIES)
CASES = (
  Case("standard", {}),
  Case("attenuation", {"layers": -1, "alpha": 0.7}),
  Case("attenuation", {"layers": (0, 3), "alpha": 0.0, "cut_sites": ("mlp",)}),
  *GATES,
  FULL,
  *BLOCKS,
)
# Options with which a fresh combinator computes what `standard` computes.
STANDARD_AT_INIT = (
  Case("standard", {}),
  Case("attenuation", {"alpha": 1.0}),
  *GATES,
  FULL,
  *BLOCKS,
)
