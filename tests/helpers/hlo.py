"""A compiled program between its partition over devices and what a backend makes of it."""

import re

COLLECTIVES = (
  "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"
)  # fmt: skip
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (.*?) ([\w-]+)\((.*)$", re.MULTILINE)
_MOVES = ("reshape", "copy", "transpose", "bitcast", "slice", "dynamic-slice", "broadcast")


def partitioned(lowered, folder) -> str:
  """Returns the text of a lowered program after partitioning, with the types that were asked for.

  Later passes of a backend narrow or widen types as they see fit.
  """
  options = {"xla_dump_to": str(folder), "xla_dump_hlo_pass_re": "spmd-partitioning"}
  lowered.compile(compiler_options=options)
  (path,) = folder.glob("*train_step*after_spmd-partitioning*.txt")
  return path.read_text()


class Instruction:
  """One instruction: its result's type as text, opcode, operands, and where it comes from."""

  def __init__(self, name, result, opcode, rest):
    self.name, self.result, self.opcode = name, result, opcode
    self.operands = re.findall(r"%([\w.-]+)", rest.split("), ")[0])
    found = re.search(r'op_name="([^"]*)"', rest)
    self.source = found[1] if found else ""

  def __repr__(self):
    return f"{self.opcode} {self.result} {self.source}"


def instructions(text) -> list[Instruction]:
  return [Instruction(*found) for found in _INSTRUCTION.findall(text)]


def narrow_sums(text) -> list[Instruction]:
  """Sums over devices of parts in 16 bits, or that a compiler may narrow to it.

  It may do so where the sum is only used after a cast. Of the rows that a split table is looked up
  in, all parts but one are 0, so their sum is exact in any type.
  """
  found = instructions(text)
  users = {}
  for one in found:
    for operand in one.operands:
      users.setdefault(operand, []).append(one)

  def is_cast(one):
    if one.opcode in _MOVES:
      return casts(one)
    return one.opcode == "convert" and "bf16" in one.result

  def casts(one):
    used = users.get(one.name, [])
    return bool(used) and all(is_cast(user) for user in used)

  sums = [one for one in found if one.opcode in ("all-reduce", "reduce-scatter")]
  sums = [one for one in sums if "take" not in one.source]
  return [one for one in sums if "bf16" in one.result or casts(one)]
