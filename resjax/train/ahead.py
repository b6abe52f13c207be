"""The training step compiled ahead of time, for devices that need not be there: what it needs."""

import dataclasses
import hashlib
import math
import re
import time

import jax
import numpy as np

from resjax.analysis import hlo
from resjax.analysis.collectives import Collective, collectives
from resjax.analysis.matrix_flops import matrix_flops
from resjax.models.flops import training_flops_per_token
from resjax.sharding import Layout
from resjax.train import program
from resjax.train.config import Run
from resjax.train.program import Program
from resjax.typing import PyTree

GIB = 2**30
_SIZE = r"([\d.]+)([KMGT]?)"
_REFUSALS = (
  rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)",
  rf"[Uu]sed {_SIZE} of {_SIZE} hbm",
)


@dataclasses.dataclass(frozen=True)
class Arguments:
  """What a step is given, bytes on one device.

  Attributes:
    parameters: float32.
    optimizer: moments.
    batch: rows of tokens, the step and the table of bytes per token.
  """

  parameters: int
  optimizer: int
  batch: int

  @property
  def total(self) -> int:
    """The sum."""
    return self.parameters + self.optimizer + self.batch


@dataclasses.dataclass(frozen=True)
class Memory:
  """What a compiled step needs of the memory of one device, bytes.

  Attributes:
    arguments: as they are; tiles that are not full are in `padding`.
    padding: that the compiler adds to them.
    temporaries: at the moment that needs most.
    output: what does not take the place of an argument.
    code: the program.
    donated: output in the place of arguments, which needs no memory of its own.
  """

  arguments: Arguments
  padding: int
  temporaries: int
  output: int
  code: int
  donated: int

  @property
  def total(self) -> int:
    """All but what is donated."""
    return self.arguments.total + self.padding + self.temporaries + self.output + self.code


@dataclasses.dataclass(frozen=True)
class Flops:
  """Floating-point operations of a step on one device.

  Attributes:
    model: 3 × forward by the model's formula; nothing recomputed.
    matrices: of the matrix products in the compiled program times the trips of their loops, what is
      recomputed included; of kernels what they say of themselves (splash attention: nothing).
    compiler: the compiler's own count, which has the body of each loop once.
  """

  model: float
  matrices: float
  compiler: float


@dataclasses.dataclass(frozen=True)
class Report:
  """A compiled step.

  Attributes:
    memory: of one device.
    flops: of one device.
    bytes_accessed: of one device by the compiler's count, the body of each loop once.
    collectives: what devices exchange.
    unknown_loops: loops that count once because their trips could not be read.
    lower_seconds: until the program was handed to the compiler.
    compile_seconds: wall time of the compiler.
    cpu_seconds: of both, over all threads.
    fingerprint: of the program as it was handed to the compiler.
  """

  memory: Memory
  flops: Flops
  bytes_accessed: float
  collectives: tuple[Collective, ...]
  unknown_loops: tuple[str, ...]
  lower_seconds: float
  compile_seconds: float
  cpu_seconds: float
  fingerprint: str


class DoesNotFitError(Exception):
  """The compiler refuses a step because a device has too little memory.

  Attributes:
    arguments: of the step.
    required: bytes.
    available: bytes.
  """

  def __init__(self, arguments: Arguments, required: float, available: float):
    self.arguments, self.required, self.available = arguments, required, available
    super().__init__(
      f"needs {required / GIB:.2f} GiB of HBM per device, {available / GIB:.2f} GiB are available: "
      f"{self.shortfall / GIB:.2f} GiB too much"
    )

  @property
  def shortfall(self) -> float:
    """Bytes."""
    return self.required - self.available


def compile_step(run: Run, layout: Layout) -> Report:
  """Compiles the training step of a run and reads what it needs.

  Args:
    run: with the vocabulary of its data.
    layout: mesh and rules; its devices may be descriptions of absent ones.

  Raises:
    DoesNotFitError: a device has too little memory.
  """
  programs = program.build(run, layout)
  wall, cpu = time.perf_counter(), time.process_time()
  lowered = programs.lower_train_step()
  lower_seconds = time.perf_counter() - wall
  arguments = count_arguments(programs)
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    sizes = refusal(str(error))
    if sizes is None:
      raise
    raise DoesNotFitError(arguments, *sizes) from None
  compile_seconds = time.perf_counter() - wall - lower_seconds
  module, costs = hlo.parse(compiled.as_text()), compiled.cost_analysis()
  tokens = run.train.batch_size * run.data.seq_len / layout.mesh.size
  per_token = training_flops_per_token(run.decoder, programs.model.combinator, run.data.seq_len)
  return Report(
    memory=_memory(arguments, compiled.memory_analysis()),
    flops=Flops(per_token * tokens, matrix_flops(module), costs["flops"]),
    bytes_accessed=costs["bytes accessed"],
    collectives=tuple(collectives(module, layout.mesh)),
    unknown_loops=tuple(module.unknown_loops()),
    lower_seconds=lower_seconds,
    compile_seconds=compile_seconds,
    cpu_seconds=time.process_time() - cpu,
    fingerprint=fingerprint(lowered),
  )


def fingerprint(lowered: jax.stages.Lowered) -> str:
  """Returns a hash of a program without the places in the source that it comes from."""
  return hashlib.sha256(lowered.as_text().encode()).hexdigest()[:16]


def count_arguments(programs: Program) -> Arguments:
  """Returns the bytes of one device that hold what a step is given."""
  state = programs.state
  others = state.step, dict(programs.batch), programs.token_bytes
  return Arguments(*(_shard_bytes(tree) for tree in (state.params, state.opt_state, others)))


def refusal(message: str) -> tuple[float, float] | None:
  """Returns the bytes that a program needs and those that a device has.

  Args:
    message: of the compiler's error.

  Returns:
    None if it refuses for another reason than HBM.
  """
  if "RESOURCE_EXHAUSTED" not in message:
    return None
  for pattern in _REFUSALS:
    if found := re.search(pattern, message):
      return _bytes(found[1], found[2]), _bytes(found[3], found[4])
  return None


def _bytes(number: str, unit: str) -> float:
  return float(number) * 1024 ** " KMGT".index(unit or " ")


def _shard_bytes(tree: PyTree) -> int:
  return sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape)) * np.dtype(leaf.dtype).itemsize
    for leaf in jax.tree.leaves(tree)
  )


def _memory(arguments: Arguments, stats) -> Memory:
  """Takes temporaries from the peak: the compiler's own figure for them has gaps in it twice."""
  given = stats.argument_size_in_bytes
  output = stats.output_size_in_bytes - stats.alias_size_in_bytes
  return Memory(
    arguments=arguments,
    padding=given - arguments.total,
    temporaries=stats.peak_memory_in_bytes - given - output,
    output=output,
    code=stats.generated_code_size_in_bytes,
    donated=stats.alias_size_in_bytes,
  )
