"""Reads what a compiled training step does from its text."""

import dataclasses

from launch.bench.program import hlo
from launch.bench.program.collectives import Collective, collectives
from launch.bench.program.depth_floor import Floor, depth_floor
from launch.bench.program.hlo_calls import unknown_loops
from launch.bench.program.matrix_flops import matrix_flops
from launch.bench.program.passes import Passes, count_passes
from resjax.models import ModelDef
from resjax.train.runs import Run


@dataclasses.dataclass(frozen=True)
class CompiledStep:
  """What the program of a training step does on one device.

  Attributes:
    matrix_flops: floating-point operations of its matrix products, as often as loops run them and
      with what is recomputed; a kernel counts with its own cost estimate (splash attention:
      nothing).
    collectives: what devices exchange.
    passes: memory traffic by our own count, which has loops times their trips.
    floor: the least of that traffic that depth mixing needs; None without a formula for it.
    unknown_loops: the loops that count once because their trips could not be read.
  """

  matrix_flops: float
  collectives: tuple[Collective, ...]
  passes: Passes
  floor: Floor | None
  unknown_loops: tuple[str, ...]


def read_step(text: str, run: Run) -> CompiledStep:
  """Reads the program of a training step.

  Args:
    text: the program, `resjax.aot.compile_step.Report.text`.
    run: the run whose step it is.
  """
  module = hlo.parse(text)
  decoder = run.decoder
  combinator = ModelDef(decoder, run.layout).combinator
  return CompiledStep(
    matrix_flops=matrix_flops(module),
    collectives=tuple(collectives(module, run.layout.mesh)),
    passes=count_passes(module, run),
    floor=depth_floor(combinator, decoder.remat, decoder.dtype),
    unknown_loops=tuple(unknown_loops(module)),
  )
