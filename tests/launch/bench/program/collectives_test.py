"""What programs exchange: kinds, bytes, mesh axes and trips, for known exchanges."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, PartitionSpec

from launch.bench.program import hlo
from launch.bench.program.collectives import Collective, asynchronous_places, collectives, groups

PROGRAMS = pathlib.Path(__file__).parent / "programs"
ROWS, WIDTH = 64, 32
BYTES = ROWS * WIDTH * 4


@pytest.fixture(scope="module")
def mesh():
  devices = np.array(jax.devices()).reshape(2, 4)
  return Mesh(devices, ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)


def exchanged(mesh, fn, spec, out, length=0):
  """What a function of each device's rows exchanges, in a scan of `length` steps if it has any."""
  mapped = jax.shard_map(fn, mesh=mesh, in_specs=spec, out_specs=out, check_vma=False)

  def scanned(x):
    if not length:
      return mapped(x)
    return lax.scan(lambda x, _: (jnp.sin(mapped(x)), None), x, None, length=length)[0]

  x = jax.ShapeDtypeStruct(
    (ROWS, WIDTH), jnp.float32, sharding=jax.sharding.NamedSharding(mesh, spec)
  )
  return collectives(hlo.parse(jax.jit(scanned).lower(x).compile().as_text()), mesh)


P = PartitionSpec
WHOLE = P()


@pytest.mark.parametrize("axis", ["data", "fsdp"])
def test_gathers_and_sums_have_the_bytes_of_the_whole(mesh, axis):
  rows = P(axis)
  gather = exchanged(mesh, lambda x: lax.all_gather(x, axis, tiled=True), rows, WHOLE)
  assert gather == [Collective("all-gather", (axis,), "", BYTES, False, 1, 1)]
  total = exchanged(mesh, lambda x: lax.psum(jnp.sin(x), axis), WHOLE, WHOLE)
  assert total == [Collective("all-reduce", (axis,), "", BYTES, False, 1, 1)]
  scatter = exchanged(mesh, lambda x: lax.psum_scatter(jnp.sin(x), axis, tiled=True), WHOLE, rows)
  assert scatter == [Collective("reduce-scatter", (axis,), "", BYTES, False, 1, 1)]


def test_exchanges_of_pairs(mesh):
  swap = exchanged(mesh, lambda x: lax.ppermute(x, "data", [(0, 1), (1, 0)]), P("data"), P("data"))
  assert swap == [Collective("collective-permute", ("data",), "", BYTES // 2, False, 1, 1)]
  turn = exchanged(
    mesh, lambda x: lax.all_to_all(x, "fsdp", 1, 0, tiled=True), P("fsdp"), P("fsdp")
  )
  assert turn == [Collective("all-to-all", ("fsdp",), "", BYTES // 4, False, 1, 1)]


def test_a_scan_of_five_steps_counts_five_times(mesh):
  both = "data", "fsdp"
  found = exchanged(mesh, lambda x: lax.psum(x, both), WHOLE, WHOLE, length=5)
  assert found == [Collective("all-reduce", both, "", BYTES, False, places=1, times=5)]


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("replica_groups={{0,2},{1,3}}", [[0, 2], [1, 3]]),
    ("source_target_pairs={{0,1},{1,0}}", [[0, 1], [1, 0]]),
    ("replica_groups=[2,2]<=[4]", [[0, 1], [2, 3]]),
    ("replica_groups=[2,2]<=[2,2]T(1,0)", [[0, 2], [1, 3]]),
    ("replica_groups=mesh['a'=2,'b'=2] {'b'}", [[0, 1], [2, 3]]),
    ("replica_groups=mesh['a'=2,'b'=2] {'a'}", [[0, 2], [1, 3]]),
    ("replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}", [[0, 2], [1, 3]]),
    ("replica_groups=mesh['a'=2,'b'=2], device_ids=(0,3,1,2) {'b'}", [[0, 3], [1, 2]]),
    ("replica_groups=mesh['a'=4] {'a':(1)2}", [[0, 2], [1, 3]]),
    ("replica_groups=mesh['a'=4] {'a':(2)2}", [[0, 1], [2, 3]]),
    ("replica_groups={}", [[0, 1, 2, 3]]),
    ("channel_id=1", [[0, 1, 2, 3]]),
    ("replica_groups=something else", None),
  ],
)
def test_groups(text, expected):
  assert groups(f"channel_id=1, {text}, use_global_device_ids=true", 4) == expected


@dataclasses.dataclass(frozen=True)
class Chip:
  """A chip of two slices of four."""

  number: int
  platform: str = "tpu"

  @property
  def slice_index(self):
    return self.number // 4


# An all-reduce over two slices, the parts of one all-gather in two fusions, a fused all-reduce of
# which a slice is kept, and a permutation in two instructions, as the compiler for TPUs writes.
SLICES = (PROGRAMS / "tpu_slices.txt").read_text()


def test_two_slices():
  chips = np.array([Chip(number) for number in range(8)], object).reshape(2, 4)
  mesh = type("Mesh", (), {"devices": chips, "axis_names": ("data", "fsdp")})
  assert collectives(hlo.parse(SLICES), mesh) == [
    Collective("all-gather", ("fsdp",), "ICI", 4 * 4096, True, 1, 1),
    Collective("reduce-scatter", ("fsdp",), "ICI", 4 * 4096, False, 1, 1),
    Collective("all-reduce", ("data",), "DCN", 4096, True, 1, 1),
    Collective("collective-permute", ("data",), "DCN", 4096, True, 1, 1),
  ]


# Only the start of an exchange in two instructions has bytes: the larger of operand and result.
STARTED = """HloModule jit_f

ENTRY %main (p: f32[8,32]) -> f32[32,32] {
  %p = f32[8,32]{1,0} parameter(0)
  %s = (f32[8,32]{1,0}, f32[32,32]{1,0}) all-gather-start(%p), channel_id=1, \
replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
  ROOT %d = f32[32,32]{1,0} all-gather-done(%s)
}
"""


# A gather that begins before a loop, goes on in a fusion of its body, and ends after it; and one
# that the body runs by itself.
LOOPED = (PROGRAMS / "tpu_gather_through_loop.txt").read_text()


def test_a_gather_that_goes_on_during_a_loop_counts_once(mesh):
  found = collectives(hlo.parse(LOOPED), mesh)
  through = Collective("all-gather", ("fsdp",), "", 32 * 32 * 4, True, places=1, times=1)
  inside = Collective("all-gather", ("fsdp",), "", 32 * 16 * 4, False, places=1, times=6)
  assert found == [inside, through]
  assert asynchronous_places(found, "all-gather") == (1, 2)


def test_an_exchange_in_two_instructions_counts_once_and_whole(mesh):
  found = collectives(hlo.parse(STARTED), mesh)
  assert found == [Collective("all-gather", ("fsdp",), "", 32 * 32 * 4, True, 1, 1)]


# As the compiler writes an exchange that SparseCores do while TensorCores go on.
OFFLOADED = """HloModule jit_f

%gather (param: f32[8,32]) -> f32[32,32] {
  %param = f32[8,32]{1,0} parameter(0)
  ROOT %all-gather = f32[32,32]{1,0} all-gather(%param), channel_id=1, \
replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
}, execution_thread="sparsecore"

ENTRY %main (p: f32[8,32]) -> f32[32,32] {
  %s = ((), (), (s32[1]{0})) call-start(), async_execution_thread="sparsecore", to_apply=%gather
  %p = f32[8,32]{1,0} parameter(0)
  %u = ((f32[8,32]{1,0}), f32[32,32]{1,0}) call-update(%s, %p)
  ROOT %d = f32[32,32]{1,0} call-done(%u)
}
"""


def test_a_gather_of_sparse_cores_counts_once_and_is_asynchronous(mesh):
  found = collectives(hlo.parse(OFFLOADED), mesh)
  assert found == [Collective("all-gather", ("fsdp",), "", 32 * 32 * 4, True, 1, 1)]
