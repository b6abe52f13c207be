"""The GPU kernels of gated reads, each with arguments that it can be compiled for."""

from collections.abc import Callable

from resjax.base import Array
from resjax.base.sharding import Layout
from resjax.kernels.gated_streams import Operands, Read
from resjax.kernels.gated_streams.mosaic_gpu import backward, forward, obstacles
from resjax.kernels.gated_streams.mosaic_gpu import plan as tile_sizes
from resjax.kernels.mosaic_gpu import GpuTiles, call

NAMES = ("normalise", "mix", "unmix", "unnormalise")


def prepared(
  name: str, sizes: tuple[int, int, int], dtype: str, layout: Layout, array: Callable
) -> str | tuple[GpuTiles, Callable, tuple]:
  """Returns a kernel of a gated read that is followed by a write.

  Arguments and results are as in `gpu_stream_kernels.prepared`.
  """
  count, tokens, width = sizes
  streams, row = array(count, tokens, width, dtype=dtype), array(tokens, width, dtype=dtype)
  by_token = array(tokens, count, width, dtype=dtype)
  down, up = array(count, width, 8), array(count, 8, width)
  operands = Operands(streams, array(count, width), down, up, array(count, width, count))
  read = Read(1e-6, implementation="mosaic_gpu", layout=layout)

  def normalise(operands: Operands) -> tuple:
    return forward.normalise(read, operands)

  def mix(operands: Operands, gates: Array, inverse_rms: Array) -> Array:
    return forward.mix(read, operands, gates, inverse_rms)

  def inputs(operands: Operands, gates: Array, d_x: Array) -> backward.Inputs:
    return backward.inputs_of(operands, gates, d_x)

  def unmix(operands: Operands, gates: Array, d_x: Array) -> tuple:
    return backward.unmix(read, operands, inputs(operands, gates, d_x))

  def unnormalise(
    operands: Operands, gates: Array, d_x: Array, inverse_rms: Array, projected: Array, state: Array
  ) -> tuple:
    given = backward.Given(inverse_rms, *call.fold((projected, state)))
    return backward.unnormalise(read, operands, inputs(operands, gates, d_x), given)

  scales = array(tokens, count)
  passes: dict[str, tuple[Callable, tuple, GpuTiles | None]] = {
    "normalise": (normalise, (), tile_sizes.normalise_tiles(read, operands)),
    "mix": (mix, (by_token, scales), tile_sizes.mix_tiles(read, operands)),
    "unmix": (unmix, (by_token, row), tile_sizes.unmix_tiles(read, operands)),
    "unnormalise": (
      unnormalise, (by_token, row, scales, by_token, streams),
      tile_sizes.unnormalise_tiles(read, operands),
    ),
  }  # fmt: skip
  if obstacle := obstacles.obstacle(read, operands):
    return obstacle
  run, others, found = passes[name]
  assert found is not None  # the read is supported
  return found, run, (operands, *others)
