"""A second count of the bytes that a training step moves, which shares nothing with ours.

XLA's own cost analysis counts every computation, with its own parser and rules. What it cannot know
is given by hand: trips of loops, how often a branch is taken, and how many sources kernels read.
"""

import dataclasses
import math
import re
from collections.abc import Callable

import jax
from jaxlib import _hlo, _jax

_SIZE = re.compile(r"(pred|[a-z]+(\d+))\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Known:
  """What is known of a step by the way it was written.

  Attributes:
    trips: a function of a loop's op_name: how often it runs its body.
    shares: how often each branch of a conditional is taken on average.
    sources: a function of a kernel's op_name: how many sources of its bank it reads on average,
      and how many arrays [T, D] it moves for each.
  """

  trips: Callable[[str], int]
  shares: tuple[float, float] = (1, 1)
  sources: Callable[[str], tuple[float, int]] | None = None


def step_bytes(text: str, known: Known) -> float:
  """Returns the bytes that a compiled program reads and writes.

  Args:
    text: of the program, compiled for TPUs.
    known: what the text does not tell.
  """
  text = "HloModule step\n" + _without_tiles(_joined(text.split("\n", 1)[1]))
  heads = re.compile(r"(?m)^(?:ENTRY )?%([\w.\-]+) \([^\n]*\{$")
  starts = [(m[1], m.end()) for m in heads.finditer(text)]
  bodies = {name: text[start : text.index("\n}\n", start)] for name, start in starts}
  entry = re.search(r"(?m)^ENTRY %([\w.\-]+)", text)
  assert entry is not None

  def whole(name: str) -> float:
    """Returns the bytes of a run of a computation with all that it calls."""
    total = _once(text, name) + _copies_and_kernels(bodies[name], known)
    total -= _shared_reads(bodies[name], bodies)
    for line in bodies[name].splitlines():
      op_name = re.search(r'op_name="([^"]*)"', line)
      if found := re.search(r" while\(.*condition=%([\w.\-]+), body=%([\w.\-]+)", line):
        total += whole(found[2]) * known.trips(op_name[1] if op_name else "")
      if found := re.search(
        r" conditional\(.*branch_computations=\{%([\w.\-]+), %([\w.\-]+)", line
      ):
        total += sum(
          whole(called) * share for called, share in zip(found.groups(), known.shares, strict=True)
        )
    return total

  return whole(entry[1])


def _once(text: str, name: str) -> float:
  """Returns XLA's count of a computation, without kernels, loops and branches."""
  calls = r"(?m) (?:while|conditional)(\(.*?\)), .*$"
  alone = re.sub(calls, r' custom-call\1, custom_call_target="elsewhere"', text)
  alone = re.sub(r"(?m)^ENTRY ", "", alone)
  alone = re.sub(rf"(?m)^%{re.escape(name)} \(", f"ENTRY %{name} (", alone)
  client = jax.devices("cpu")[0].client
  costs = _jax.hlo_module_cost_analysis(client, _hlo.hlo_module_from_text(alone))
  return costs.get("bytes accessed", 0)


def _copies_and_kernels(body: str, known: Known) -> float:
  """Returns what has to be added to XLA's count of a computation.

  An asynchronous copy reads and writes an array. XLA counts it four times, because start and end
  both name it, and an asynchronous slice three times.
  """
  total = 0.0
  for line in body.splitlines():
    if found := re.search(r" = (.*) (copy|slice)-done\(", line):
      total += (2 - {"copy": 4, "slice": 3}[found[2]]) * _bytes(found[1])
    if "tpu_custom_call" in line:
      total += _kernel(line, known)
  return total


def _shared_reads(body: str, bodies: dict[str, str]) -> float:
  """Returns what XLA counts twice: operands that a product in a fusion reads, and the rest of it.

  Inside the fusion, what prepares an operand of a product is a fusion of its own. XLA lets all
  other instructions share one read of a parameter, but not with such a fusion.
  """
  total = 0.0
  for called in re.findall(r" fusion\(.*calls=%([\w.\-]+)", body):
    lines = bodies[called].splitlines()
    for line in lines:
      if found := re.match(r"\s*(?:ROOT )?(%[\w.\-]+) = (.*) parameter\(", line):
        users = [user for user in lines if re.search(rf"\(.*{re.escape(found[1])}\b", user)]
        inner = [user for user in users if " fusion(" in user]
        if inner and len(users) > len(inner):
          total += _bytes(found[2])
  return total


def _kernel(line: str, known: Known) -> float:
  name, rest = line.replace("ROOT", "").strip().split(" = ", 1)
  declared = re.search(r'"bytes_accessed":"(\d+)"', line)
  if declared is None or not int(declared[1]):
    operands = re.search(r"operand_layout_constraints=\{(.*?)\}, \w+=", line)
    assert operands is not None
    return _bytes(rest.split(" custom-call(")[0]) + _bytes(operands[1])
  banks = re.findall(r"bf16\[(\d+),\d+,\d+\]", line.split("operand_layout_constraints=")[1])
  if known.sources is None or "merge" in name or not banks:
    return int(declared[1])
  slots = max(map(int, banks))
  one = next(size for size in _SIZE.finditer(line) if size[0].startswith(f"bf16[{slots},"))
  op_name = re.search(r'op_name="([^"]*)"', line)
  read, arrays = known.sources(op_name[1] if op_name else name)
  return int(declared[1]) - (slots - read) * arrays * _bytes(one[0]) / slots


def _bytes(text: str) -> int:
  """Returns the bytes of all arrays that a text names."""
  total = 0
  for kind, bits, sizes in _SIZE.findall(text):
    width = 1 if kind == "pred" else int(bits) // 8
    total += width * math.prod(int(size) for size in sizes.split(",") if size)
  return total


def _without_tiles(text: str) -> str:
  """Returns the text without the tiles of arrays, whose padding some versions of XLA count."""
  return re.sub(r"T\([\d,]+\)(\([\d,]+\))*", "", text).replace("{:}", "").replace(":}", "}")


def _joined(text: str) -> str:
  """Returns the text with each instruction on one line."""
  return re.sub(r"\n(?!  |\}\n|%|ENTRY|$|\n)", " ", text)
