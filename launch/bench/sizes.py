"""Flags of the benchmarks that draw a decoder: its layers and its width."""

from absl import flags


def define(layers: int, d_model: int) -> tuple[flags.FlagHolder[int], flags.FlagHolder[int]]:
  """Defines --layers and --d_model with these defaults."""
  return (
    flags.DEFINE_integer("layers", layers, "Layers.", lower_bound=1),
    flags.DEFINE_integer("d_model", d_model, "Width; a multiple of 64.", lower_bound=64),
  )
