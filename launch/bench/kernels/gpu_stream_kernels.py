"""The GPU kernels of residual streams, each with arguments that it can be compiled for."""

from collections.abc import Callable
from typing import Any

from resjax.base.sharding import Layout
from resjax.kernels.mosaic_gpu import GpuTiles
from resjax.kernels.streams import Operands, Pending, Read
from resjax.kernels.streams.mosaic_gpu import backward, forward, obstacles, plan

# `read` writes and mixes in one launch, as without φ; the others run where there is φ.
NAMES = ("read", "write", "mix", "unmix", "unwrite")


def prepared(
  name: str, sizes: tuple[int, int, int], dtype: str, layout: Layout, array: Callable
) -> str | tuple[GpuTiles, Callable, tuple]:
  """Returns a kernel of streams that are followed by a norm.

  Args:
    name: of `NAMES`.
    sizes: R, T and D.
    dtype: of the streams.
    layout: mesh of the GPU.
    array: function (*shape, dtype) -> abstract array there.

  Returns:
    Why it cannot run; or its tiles, a function that runs it, and the arguments of that.
  """
  count, tokens, width = sizes
  streams, row = array(count, tokens, width, dtype=dtype), array(tokens, width, dtype=dtype)
  per_stream, weights = array(count, tokens), array(count * (count + 1), tokens)
  phi = None if name == "read" else array(count, width, count * (count + 2))
  operands = Operands(Pending(streams, weights, row), phi, (), array(width))
  read = Read(_no_coefficients, 0, 1e-6, implementation="mosaic_gpu", layout=layout)
  passes: dict[str, tuple[Callable, tuple]] = {
    "read": (forward.write, (per_stream,)),
    "write": (forward.write, ()),
    "mix": (forward.mix, (streams, per_stream)),
    "unmix": (backward.unmix, (per_stream, row)),
    "unwrite": (backward.unwrite, (per_stream, row, _cotangents(sizes, dtype, array))),
  }
  run, others = passes[name]
  choose = plan.write_tiles if name == "read" else getattr(plan, f"{name}_tiles")

  def call(operands: Operands, *others: Any) -> Any:
    return run(read, operands, *others)

  if obstacle := obstacles.obstacle(read, operands):
    return obstacle
  found = choose(read, operands)
  assert found is not None  # the read is supported
  return found, call, (operands, *others)


def _cotangents(sizes: tuple[int, int, int], dtype: str, array: Callable) -> backward.Cotangents:
  count, tokens, width = sizes
  rows = array(count, tokens, width // 128, 128, dtype=dtype)
  return backward.Cotangents(array(tokens), array(tokens), rows, rows, array(tokens, count))


def _no_coefficients(*_: Any) -> Any:
  raise AssertionError("a kernel is given coefficients, it computes none")
