"""What a compiled step needs of a device's memory, by kind, or why it does not fit."""

import dataclasses
import math
import re

import jax
import numpy as np

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
    optimizer: moments, and what the step guard remembers.
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


def count_arguments(programs: Program) -> Arguments:
  """Returns the bytes of one device that hold what a step is given."""
  state = programs.state
  others = state.step, dict(programs.batch), programs.token_bytes
  moments = state.opt_state, state.guard
  return Arguments(*(_shard_bytes(tree) for tree in (state.params, moments, others)))


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


def measure(arguments: Arguments, compiled: jax.stages.Compiled) -> Memory:
  """Returns the memory that a compiled step needs.

  Temporaries are taken from the peak: the compiler's own figure for them has its gaps twice.
  """
  stats = compiled.memory_analysis()
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


def _bytes(number: str, unit: str) -> float:
  return float(number) * 1024 ** " KMGT".index(unit or " ")


def _shard_bytes(tree: PyTree) -> int:
  return sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape)) * np.dtype(leaf.dtype).itemsize
    for leaf in jax.tree.leaves(tree)
  )
