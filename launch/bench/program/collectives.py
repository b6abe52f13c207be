"""Reads the collectives of a compiled step: kinds, sizes, axes, network, overlap."""

import collections
import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping

import jax
import numpy as np
from jax.sharding import Mesh

from launch.bench.program.hlo import Computation, Instruction, Module, search
from launch.bench.program.hlo_calls import ComputationCall, calls

KINDS = (
  "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all",
  "collective-permute", "collective-broadcast",
)  # fmt: skip
_CHANNEL = re.compile(r"channel_id=(\d+)")
_LISTS = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})\}")
_IOTA = r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?"
_MESH = re.compile(
  r"replica_groups=mesh\[(?P<sizes>[^\]]*)\](?:, device_ids=\((?P<ids>.*?)\))? "
  r"\{(?P<along>[^}]*)\}"
)
_DCN = re.compile(r"_xla_megascale_transfer_type=\"(\w+)\"")
_NETWORKS = {"tpu": ("ICI", "DCN"), "gpu": ("NVLink", "nodes")}
_DCN_KINDS = {"ONE_TO_ONE": "collective-permute"}


@dataclasses.dataclass(frozen=True)
class Collective:
  """Exchanges of one kind and size over the same mesh axes.

  Attributes:
    kind: one of `KINDS`.
    axes: the mesh axes along which devices exchange; `?` if the program does not tell.
    network: `ICI` within a TPU slice, `DCN` between slices; `NVLink` within a node of GPUs, `nodes`
      between nodes; empty on other platforms. num_bytes: size of one exchange on one device: the
      larger of the bytes that the device sends and receives.
    asynchronous: whether a device may do other work between its start and its end.
    places: how many there are in the text of the program.
    times: how many there are in a step; those in a branch of a conditional count every time.
  """

  kind: str
  axes: tuple[str, ...]
  network: str
  num_bytes: int
  asynchronous: bool
  places: int
  times: int


# The fields of a `Collective` without its counts.
_Row = tuple[str, tuple[str, ...], str, int, bool]


def collectives(module: Module, mesh: Mesh) -> list[Collective]:
  """Returns the collectives of a step, the largest sums of bytes first.

  Args:
    module: the compiled step.
    mesh: the mesh that it was compiled for.
  """
  times: collections.Counter[_Row] = collections.Counter()
  places: collections.Counter[_Row] = collections.Counter()
  for call, line, asynchronous in _exchanges(module):
    dcn = _DCN.search(line.attributes)
    if dcn:
      kind = _DCN_KINDS.get(dcn[1], dcn[1].lower().replace("_", "-"))
      axes, network = _slice_axes(mesh), "DCN"
    else:
      kind, (axes, network) = _kind(call, line), _where(line, mesh)
    one = kind, axes, network, _num_bytes(call.computation, line), asynchronous
    places[one] += 1
    times[one] += call.times
  rows = [Collective(*one, places=places[one], times=times[one]) for one in places]
  return sorted(rows, key=lambda row: row.num_bytes * row.times, reverse=True)


def asynchronous_places(rows: Iterable[Collective], kind: str) -> tuple[int, int]:
  """Returns how many exchanges of a kind in a program are asynchronous, and how many there are."""
  chosen = [row for row in rows if row.kind == kind]
  return sum(row.places for row in chosen if row.asynchronous), sum(row.places for row in chosen)


def _exchanges(module: Module) -> Iterator[tuple[ComputationCall, Instruction, bool]]:
  """Yields every exchange once, and whether it is asynchronous.

  An asynchronous one has a start and an end that are instructions of their own. Or, by the compiler
  for TPUs, it is spread over several fusions: one begins it, some compute meanwhile, one ends it.
  These parts have the same channel and shape, as no two exchanges of a computation have that is not
  fused. Some of them may be in a loop that runs between the beginning and the end.
  """
  parts: dict[tuple, list[tuple[ComputationCall, Instruction]]] = {}
  callers = _callers(module)
  for number, call in enumerate(calls(module)):
    name = call.computation.name
    for line in call.computation.instructions.values():
      if line.opcode.removesuffix("-start") not in KINDS and not _sends(line):
        continue
      key: tuple = (number, line.name)
      if call.fused:
        exchange = line.opcode, search(_CHANNEL, line.attributes)[1], str(line.arrays)
        around = [(*exchange, outer) for outer in _around(callers, name)]
        key = next((known for known in reversed(around) if known in parts), around[0])
      parts.setdefault(key, []).append((call, line))
  for (call, line), *others in parts.values():
    started = line.opcode.endswith("-start") or _sends(line)
    waits = callers.get(call.computation.name, ("", ""))[1] in ("async-start", "call-start")
    yield call, line, started or waits or len(others) > 0


def _callers(module: Module) -> dict[str, tuple[str, str]]:
  """Returns, for each computation but the entry, which one calls it, and with what opcode."""
  return {
    name: (computation.name, line.opcode)
    for computation in module.computations.values()
    for line in computation.instructions.values()
    if line.opcode not in ("async-update", "async-done")
    for names in line.called.values()
    for name in names
  }


def _around(callers: Mapping[str, tuple[str, str]], name: str) -> list[str]:
  """Returns the computations around a fused one that are not fused, the innermost first."""
  found: list[str] = []
  while name in callers:
    name, opcode = callers[name]
    found = [name] if opcode == "fusion" else [*found, name]
  return found


def _sends(line: Instruction) -> bool:
  return line.opcode == "send" and _DCN.search(line.attributes) is not None


def _kind(call: ComputationCall, line: Instruction) -> str:
  """Returns the kind; a fused all-reduce of which only a slice is kept is a reduce-scatter."""
  kind = line.opcode.removesuffix("-start")
  root = call.computation.instructions[call.computation.root]
  if call.fused and kind == "all-reduce" and root.opcode == "dynamic-slice":
    return "reduce-scatter"
  return kind


def _num_bytes(computation: Computation, line: Instruction) -> int:
  """Returns the bytes of the larger of operands and results.

  The result of an asynchronous start is a tuple of its operands, and then of its results.
  """
  lines = computation.instructions
  given = sum(lines[name].num_bytes for name in line.operands if name in lines)
  if line.opcode == "send":
    return given
  if line.opcode.endswith("-start"):
    count = len(line.operands)
    results = line.arrays[count : 2 * count]
    return max(given, sum(bits * math.prod(sizes) for bits, sizes in results) // 8)
  return max(line.num_bytes, given)


def _where(line: Instruction, mesh: Mesh) -> tuple[tuple[str, ...], str]:
  """Returns the mesh axes along which the members of a group differ, and their network."""
  places = list(np.ndindex(mesh.devices.shape))
  devices = list(mesh.devices.flat)
  members = groups(line.attributes, len(devices))
  if members is None:
    return ("?",), ""
  differ: set[str] = set()
  crosses = False
  for group in members:
    for axis, numbers in enumerate(zip(*[places[number] for number in group], strict=True)):
      if len(set(numbers)) > 1:
        differ.add(mesh.axis_names[axis])
    crosses |= len({_slice(devices[number]) for number in group}) > 1
  axes = tuple(axis for axis in mesh.axis_names if axis in differ)
  inside, between = _NETWORKS.get(devices[0].platform, ("", ""))
  return axes, between if crosses else inside


def _slice(device: jax.Device) -> int:
  """Returns the number of a device's slice, or of its node if it is a GPU."""
  return device.process_index if device.platform == "gpu" else getattr(device, "slice_index", 0)


def _slice_axes(mesh: Mesh) -> tuple[str, ...]:
  """Returns the mesh axes along which the slice changes."""
  slices = np.vectorize(_slice)(mesh.devices)
  changes = [np.any(slices != slices.take([0], axis)) for axis in range(slices.ndim)]
  return tuple(itertools.compress(mesh.axis_names, changes))


def groups(attributes: str, num_devices: int) -> list[list[int]] | None:
  """Returns the groups of devices that exchange, None if they are written in an unknown way.

  Args:
    attributes: the attributes of an exchange. They give groups as lists, as numbers from 0 on that
      are reshaped and transposed, or as axes of a mesh of the compiler's own.
    num_devices: the devices of the program, all of which exchange if no groups are given.
  """
  if found := _LISTS.search(attributes):
    lists = [part.strip("{}") for part in found[1].split("},{")]
    return [_integers(part) for part in lists if part]
  if found := re.search(rf"replica_groups={_IOTA}", attributes):
    return _iota(*found.groups()).tolist()
  if found := _MESH.search(attributes):
    return _mesh_groups(**found.groupdict())
  if re.search(r"replica_groups=(?!\{\})|source_target_pairs=", attributes):
    return None
  return [list(range(num_devices))]


def _mesh_groups(sizes: str, ids: str | None, along: str) -> list[list[int]]:
  """Returns groups along axes of a mesh ('a'=4,'b'=2), or along parts of axes ('a':(2)2)."""
  chosen = re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", along)
  shape: list[int] = []
  apart: list[int] = []
  together: list[int] = []
  for name, size in re.findall(r"'(\w+)'=(\d+)", sizes):
    parts = [(int(low or 1), int(n or size)) for axis, low, n in chosen if axis == name]
    cuts = {1, int(size)} | {low for low, _ in parts} | {low * n for low, n in parts}
    for low, high in itertools.pairwise(sorted(cuts)):
      inside = any(first <= low < first * n for first, n in parts)
      (together if inside else apart).append(len(shape))
      shape.append(high // low)
  numbers = np.arange(math.prod(shape))
  if ids:
    iota = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", ids)
    numbers = _iota(str(numbers.size), *iota.groups()) if iota else np.array(_integers(ids))
  size = math.prod(shape[axis] for axis in together)
  return numbers.reshape(shape).transpose(apart + together).reshape(-1, size).tolist()


def _iota(shape: str, sizes: str, order: str | None) -> np.ndarray:
  """Returns the numbers from 0 on, reshaped to `sizes`, transposed, and reshaped to `shape`."""
  axes = _integers(order) if order else None
  numbers = np.arange(math.prod(_integers(sizes))).reshape(_integers(sizes))
  return numbers.transpose(axes).reshape(_integers(shape))


def _integers(text: str) -> list[int]:
  return [int(number) for number in text.split(",")]
