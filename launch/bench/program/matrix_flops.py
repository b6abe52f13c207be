"""Counts the floating-point operations of a compiled step with the trips of its loops.

The compiler's own count has the body of a loop once, however often the loop runs it.
"""

import itertools
import math
import re

from launch.bench.program.hlo import Computation, Instruction, Module, search
from launch.bench.program.hlo_calls import calls

_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_ESTIMATE = re.compile(r'"cost_estimate":\{"flops":"(\d+)"')


def matrix_flops(module: Module, *, loops: bool = True) -> int:
  """Returns the FLOPs of the matrix products of one device, a multiply-add counting as two.

  XLA cannot look inside a kernel: it counts with what its author says, which may be nothing.

  Args:
    module: the compiled step.
    loops: whether an instruction counts as often as loops run it, or once.
  """
  return sum(
    _flops(call.computation, line) * (call.times if loops else 1)
    for call in calls(module)
    for line in call.computation.instructions.values()
  )


def _flops(computation: Computation, line: Instruction) -> int:
  if line.opcode == "dot":
    left = _sizes(computation, line, 0)
    contracted = search(_CONTRACTED, line.attributes)[1]
    sizes = [left[int(axis)] for axis in contracted.split(",") if axis]
    return 2 * math.prod(line.arrays[0][1]) * math.prod(sizes)
  if line.opcode == "convolution":
    return _convolution(computation, line)
  if line.opcode == "custom-call":
    estimate = _ESTIMATE.search(line.attributes)
    return int(estimate[1]) if estimate else 0
  return 0


def _sizes(computation: Computation, line: Instruction, operand: int) -> tuple[int, ...]:
  return computation.instructions[line.operands[operand]].arrays[0][1]


def _convolution(computation: Computation, line: Instruction) -> int:
  """Counts a convolution; on TPUs matrix products are some, padded where they have batch axes."""
  inputs, kernels, outputs = search(_LABELS, line.attributes).groups()
  left, right = (_sizes(computation, line, operand) for operand in (0, 1))
  result = line.arrays[0][1]
  groups = re.search(r"batch_group_count=(\d+)", line.attributes)
  count = left[inputs.index("b")] // (int(groups[1]) if groups else 1)
  count *= right[kernels.index("i")] * result[outputs.index("f")]
  window = {
    key: values.split("x") for key, values in re.findall(r"(\w+)=([\d_x\-]+)", _window(line))
  }
  for number in itertools.takewhile(lambda n: str(n) in outputs, itertools.count()):
    axis = str(number)

    def of(key: str, default: str, number: int = number) -> str:
      return window[key][number] if key in window else default

    count *= _pairs(
      left[inputs.index(axis)],
      right[kernels.index(axis)],
      result[outputs.index(axis)],
      stride=int(of("stride", "1")),
      before=int(of("pad", "0_0").split("_")[0]),
      spread=int(of("lhs_dilate", "1")),
      reach=int(of("rhs_dilate", "1")),
    )
  return 2 * count


def _window(line: Instruction) -> str:
  found = re.search(r"window=\{([^}]*)\}", line.attributes)
  return found[1] if found else ""


def _pairs(
  size: int, kernel: int, result: int, *, stride: int, before: int, spread: int, reach: int
) -> int:
  """Counts the pairs of an output and a kernel position that meet no padding and no gap."""
  last = (size - 1) * spread
  places = (out * stride + tap * reach - before for out in range(result) for tap in range(kernel))
  return sum(0 <= place <= last and place % spread == 0 for place in places)
