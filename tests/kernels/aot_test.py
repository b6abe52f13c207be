"""The TPU kernels compiled for chips that are not there; needs libtpu (the extra `tpu`)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from launch.bench.kernels import tpu_schedule
from launch.bench.kernels.tpu_compile import KernelCase, compile_kernel, sizes_of
from resjax.aot import absent_devices
from resjax.base.hardware.chips import TPU_CHIPS
from resjax.base.sharding import MESH_AXES, Layout
from resjax.kernels.depth_attention import Sources, depth_attention
from resjax.kernels.depth_attention.mosaic_tpu import tiles
from tests.helpers import layouts
from tests.helpers.libtpu import needs_libtpu

pytestmark = pytest.mark.usefixtures("no_tpu")
DIRECTIONS = "forward", "backward"


def check(chip, case):
  compiled = compile_kernel(chip, case)
  assert compiled.as_text().count("tpu_custom_call") == 1
  # No copy of a source: what is aliased is aliased, what is read is read where it lies.
  source = case.num_tokens * case.width * jnp.dtype(case.dtype).itemsize
  assert compiled.memory_analysis().temp_size_in_bytes < source


@needs_libtpu
@pytest.mark.parametrize("name", DIRECTIONS)
@pytest.mark.parametrize("chip", TPU_CHIPS)
def test_add_norm_and_bank_threaded(chip, name):
  check(chip, KernelCase(name, True, num_tokens=1024, num_banked=6))


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("name", DIRECTIONS)
@pytest.mark.parametrize("chip", TPU_CHIPS)
@pytest.mark.parametrize(
  "sizes",
  [
    {},
    {"fused": False},
    {"fused": False, "num_banked": 8},
    {"num_slots": 1},
    {"num_slots": 9, "width": 7168},
    {"num_slots": 64, "width": 1536, "num_banked": 63},
    {"num_slots": 64, "width": 128},
    {"dtype": "float32", "width": 384, "num_banked": 3},
    {"num_tokens": 1000, "num_banked": 3},
    {"num_tokens": 5, "width": 128},
  ],
  ids=str,
)
def test_other_sizes(chip, name, sizes):
  case = KernelCase(**{"name": name, "fused": True, "num_tokens": 2048} | sizes)
  if (chip, name) == ("v4", "backward") and case.width * case.num_slots > 2**15:
    assert "MiB on the chip" in tiles.obstacle(sizes_of(chip, case))  # an eighth of v5e's memory
    return
  compiled = compile_kernel(chip, case)
  assert compiled.as_text().count("tpu_custom_call") == 1


@needs_libtpu
def test_gradient_over_four_chips_exchanges_the_query_alone():
  devices = absent_devices.describe("v5e:2x2").devices
  mesh = Mesh(np.array(devices).reshape(2, 2, 1, 1, 1), MESH_AXES, axis_types=(AxisType.Auto,) * 5)
  layout = Layout(mesh, layouts.sharding("long_context").rules)

  def loss(query, bank, recent, num_valid):
    h = depth_attention(Sources((recent,), bank, num_valid), query, layout=layout)
    return jnp.sum(jnp.sin(h.astype(jnp.float32)))

  def array(axes, *shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=layout.sharding(*axes))

  tokens = "batch", "tokens", None
  gradient = jax.jit(jax.grad(loss, (0, 1, 2)))
  text = gradient.lower(
    array((None,), 256, dtype=jnp.float32),
    array((None, *tokens), 3, 8, 128, 256),
    array(tokens, 8, 128, 256),
    array((), dtype=jnp.int32),
  ).compile().as_text()  # fmt: skip
  assert text.count('custom_call_target="tpu_custom_call"') == 2
  assert "all-gather" not in text
  assert text.count(" all-reduce(") + text.count(" all-reduce-start(") == 1


def test_bundles_are_counted_per_loop():
  lines = [
    "LH: loop header",
    "     0   :  { %s1 = smov 0 }",
    "   0x1   :  { %s1 = smov 0 }",
    "   0x2 LB: > { %s2 = sadd.s32 1, %s1  ;;  %s3 = smov 0 }",
    "   0x3   : > { %s2 = sadd.s32 1, %s1 }",
    "   0x4 LB: >> { %v1 = vld [vmem:[%s2] sm:$0xff] }",
    "second_minor_factor: 1 */ } /* End region 53 */",
    "   0x5 PF: >>> { %v1 = vld [vmem:[%s2] sm:$0xff] }",
    "   0x6   : > {}",
    "   0x7   :  { %s1 = smov 0 }",
  ]
  assert tpu_schedule.count_bundles(lines) == (3, 2)
  clear = ["   0x8   : > { %5 = vst [vmem:[%s2] sm:$0xff] %v1 }"]
  assert tpu_schedule.count_bundles(lines + 20 * clear) == (3, 2)
  assert tpu_schedule.count_bundles(lines + 2 * clear) == (5, 2)


@needs_libtpu
@pytest.mark.parametrize("chip", [pytest.param("v5e", marks=pytest.mark.release), "v5p", "v6e"])
def test_memory_is_the_limit(chip, tmp_path):
  schedules = tpu_schedule.main(tmp_path, [chip])
  assert len(schedules) == 8 and max(s.ratio for s in schedules) <= 1.0
  assert {path.name for path in tmp_path.iterdir()} == {"tpu_schedule.json", "tpu_schedule.png"}


def test_a_chip_that_is_not_known_is_refused(tmp_path):
  with pytest.raises(ValueError, match="allowed: v4, v5e, v5p, v6e, tpu7x"):
    tpu_schedule.main(tmp_path, ["v3"])
