"""Reads how much of a device's memory a compiled step needs, by kind, or why it does not fit."""

import dataclasses
import re
from typing import Any

import jax

from resjax.train import Program, bytes_per_device

GIB = 2**30
_SIZE = r"([\d.]+)([KMGT]?)"
_REFUSALS = (
  rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)",
  rf"[Uu]sed {_SIZE} of {_SIZE} hbm",
)


@dataclasses.dataclass(frozen=True)
class Arguments:
  """The bytes on one device of the arguments of a step.

  Attributes:
    parameters: the parameters in float32.
    optimizer: the optimizer's moments, and the state of the step guard.
    batch: the rows of tokens, the number of the step, and the table of bytes per token.
  """

  parameters: int
  optimizer: int
  batch: int

  @property
  def total(self) -> int:
    """The bytes of all arguments."""
    return self.parameters + self.optimizer + self.batch


@dataclasses.dataclass(frozen=True)
class Memory:
  """The bytes of one device that a compiled step needs.

  Attributes:
    arguments: the arguments of the step, without padding.
    padding: padding of the arguments to whole tiles.
    temporaries: intermediate results at the moment that needs most.
    output: results that do not take the place of an argument.
    code: the program itself.
    donated: results that take the place of arguments, and need no memory of their own.
  """

  arguments: Arguments
  padding: int
  temporaries: int
  output: int
  code: int
  donated: int

  @property
  def total(self) -> int:
    """The sum of all but the donated bytes."""
    return self.arguments.total + self.padding + self.temporaries + self.output + self.code


class DoesNotFitError(Exception):
  """The compiler refuses a step because a device has too little memory.

  Attributes:
    arguments: the arguments of the step.
    required: the bytes that it needs.
    available: the bytes that the device has.
  """

  def __init__(self, arguments: Arguments, required: float, available: float):
    self.arguments, self.required, self.available = arguments, required, available
    super().__init__(
      f"needs {required / GIB:.2f} GiB of HBM per device, {available / GIB:.2f} GiB are available: "
      f"{self.shortfall / GIB:.2f} GiB too much"
    )

  @property
  def shortfall(self) -> float:
    """The bytes that are missing."""
    return self.required - self.available


def count_arguments(programs: Program) -> Arguments:
  """Returns the bytes of one device that the arguments of the training step take."""
  state = programs.state
  others = state.step, dict(programs.batch)
  moments = state.opt_state, state.guard
  return Arguments(*(bytes_per_device(tree) for tree in (state.params, moments, others)))


def refusal(message: str) -> tuple[float, float] | None:
  """Returns the bytes that a program needs and those that a device has, from a compiler's error.

  Returns:
    The two numbers, or None if the compiler refuses the program for another reason than HBM.
  """
  if "RESOURCE_EXHAUSTED" not in message:
    return None
  for pattern in _REFUSALS:
    if found := re.search(pattern, message):
      return _bytes(found[1], found[2]), _bytes(found[3], found[4])
  return None


def memory_stats(compiled: jax.stages.Compiled) -> Any:
  """Returns the compiler's figures, JAX's `CompiledMemoryStats`.

  Raises:
    ValueError: it has none.
  """
  stats = compiled.memory_analysis()
  if stats is None:
    raise ValueError("the compiler of this platform does not tell what memory a program needs")
  return stats


def measure(arguments: Arguments, compiled: jax.stages.Compiled) -> Memory:
  """Returns the memory that a compiled step needs.

  The temporaries are derived from the peak, because the compiler's own figure for them counts twice
  what fragmentation leaves unused.
  """
  stats = memory_stats(compiled)
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
