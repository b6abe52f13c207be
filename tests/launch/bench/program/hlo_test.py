"""Programs read from text: trips of loops, calls, and FLOPs of matrix products."""

import pathlib
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from launch.bench.program import hlo
from launch.bench.program.hlo_calls import trip_count, unknown_loops
from launch.bench.program.matrix_flops import matrix_flops

PROGRAMS = pathlib.Path(__file__).parent / "programs"
M, K, N = 8, 16, 32


def compiled(fn, *shapes):
  arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  return jax.jit(fn).lower(*arguments).compile()


def trips(text):
  module = hlo.parse(text)
  return sorted(
    trip_count(module, computation, line)
    for computation in module.computations.values()
    for line in computation.instructions.values()
    if line.opcode == "while"
  )


def nested(x, w):
  def outer(x, _):
    return lax.scan(lambda x, _: (jnp.sin(x @ w), None), x, None, length=5)[0], None

  return lax.scan(outer, x, None, length=3)[0]


def unnoted(text):
  """The program without the compiler's notes on its loops, as that for TPUs has none."""
  stripped, count = re.subn(r'"known_trip_count":\{"n":"\d+"\}', "", text)
  assert count
  return stripped


def test_trips_are_read_from_the_notes_and_from_the_loops_alike():
  text = compiled(nested, (M, M), (M, M)).as_text()
  assert trips(text) == trips(unnoted(text)) == [3, 5]


def test_flops_count_trips():
  step = compiled(nested, (M, M), (M, M))
  module = hlo.parse(unnoted(step.as_text()))
  assert matrix_flops(module) == 3 * 5 * 2 * M**3
  assert matrix_flops(module, loops=False) == 2 * M**3
  assert unknown_loops(module) == []


def test_a_loop_that_depends_on_data_counts_once_and_is_named():
  def fn(x, w):
    return lax.while_loop(lambda x: jnp.sum(x) > 0, lambda x: x @ w, x)

  module = hlo.parse(compiled(fn, (M, M), (M, M)).as_text())
  assert matrix_flops(module) == 2 * M**3
  assert len(unknown_loops(module)) == 1


@pytest.mark.parametrize(
  "options",
  [
    {},
    {"padding": [(2, 1)]},
    {"window_strides": (3,), "padding": [(4, 0)]},
    {"lhs_dilation": (2,), "padding": [(1, 3)]},
    {"rhs_dilation": (2,), "padding": [(2, 2)]},
    {"feature_group_count": 2},
    {"batch_group_count": 2},
  ],
  ids=str,
)
def test_flops_of_convolutions_are_those_of_xla(options):
  def fn(x, w):
    defaults = {"window_strides": (1,), "padding": [(0, 0)]}
    return lax.conv_general_dilated(x, w, **(defaults | options))

  channels = 4 // options.get("feature_group_count", 1)
  step = compiled(fn, (2, 4, 11), (6, channels, 3))
  assert matrix_flops(hlo.parse(step.as_text())) == step.cost_analysis()["flops"]


def test_flops_of_products_are_those_of_xla():
  step = compiled(lambda x, w: x @ w, (M, K), (K, N))
  assert matrix_flops(hlo.parse(step.as_text())) == step.cost_analysis()["flops"] == 2 * M * K * N


CONTRACTED = """HloModule jit_f

ENTRY %main (x: f32[8,4,5], w: f32[4,5,7]) -> f32[8,7] {
  %x = f32[8,4,5]{2,1,0} parameter(0)
  %w = f32[4,5,7]{2,1,0} parameter(1)
  ROOT %d = f32[8,7]{1,0} dot(%x, %w), lhs_contracting_dims={1,2}, rhs_contracting_dims={0,1}
}
"""


def test_flops_of_a_product_over_two_axes():
  assert matrix_flops(hlo.parse(CONTRACTED)) == 2 * 8 * 7 * 4 * 5


# As the compiler for TPUs writes: a product with batch axes as a padded convolution, attributes
# with line breaks, an estimate of a kernel, and a loop whose bound is carried.
TPU = (PROGRAMS / "tpu_loop.txt").read_text()


def test_text_for_tpus():
  module = hlo.parse(TPU)
  assert trips(TPU) == [3]
  assert set(module.computations) == {"cond", "body", "main"} and module.entry == "main"
  assert matrix_flops(module) == 2 * 2048 * 2048 * 16 * 128 + 3 * 1000
  kernel = module.computations["body"].instructions["k.2"]
  assert kernel.num_bytes == 8 * 4 * 4 and "cost_estimate" in kernel.attributes


def test_bytes_of_shapes():
  assert hlo.arrays("(bf16[2,3]{1,0:T(8,128)(2,1)}, pred[5], f8e4m3fn[7], s32[], token[])") == [
    (16, (2, 3)), (8, (5,)), (8, (7,)), (32, ()), (0, ()),
  ]  # fmt: skip
