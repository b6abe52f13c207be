"""The TPU kernels of both phases compiled for chips that are not there; needs libtpu."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from resjax.aot import absent_devices
from resjax.base.hardware import slices
from resjax.base.hardware.chips import TPU_CHIPS
from resjax.base.sharding import MESH_AXES, Layout
from resjax.kernels.depth_attention import (
  BlockRead,
  Sources,
  depth_attention_block,
  depth_attention_merge,
)
from tests.helpers import layouts
from tests.helpers.libtpu import needs_libtpu

pytestmark = pytest.mark.usefixtures("no_tpu")


def layout_of(chip, data=1, sequence=1):
  devices = absent_devices.describe(slices.GENERATIONS[chip].host).devices
  grid = np.array(devices[: data * sequence]).reshape(data, 1, 1, 1, sequence)
  mesh = Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * 5)
  return Layout(mesh, layouts.sharding("long_context").rules)


def array(layout, axes, *shape, dtype=jnp.bfloat16):
  return jax.ShapeDtypeStruct(shape, dtype, sharding=layout.sharding(*axes))


TOKENS = "batch", "tokens", None


def compile_block(layout, num_banked, num_recent, num_reads, tokens, width, dtype=jnp.bfloat16):
  """Phase 1 with its gradients; sources threaded, their cotangents given and given back."""

  def run(queries, bank, recent, num_valid, d_read, d_sources):
    def read(queries, bank, recent):
      got, sources = depth_attention_block(
        Sources(recent, bank, num_valid), queries, return_sources=True, layout=layout
      )
      return got.out, got.lse, sources.bank, sources.recent

    out, vjp = jax.vjp(read, queries, bank, recent)
    return out[:2], vjp((*d_read, *d_sources))

  source = array(layout, TOKENS, *tokens, width, dtype=dtype)
  bank = array(layout, (None, *TOKENS), num_banked, *tokens, width, dtype=dtype)
  sources = bank if num_banked else None, (source,) * num_recent
  reads = array(layout, (None, *TOKENS), num_reads, *tokens, width, dtype=dtype)
  lse = array(layout, (None, *TOKENS[:2]), num_reads, *tokens, dtype=jnp.float32)
  queries = array(layout, (None, None), num_reads, width, dtype=jnp.float32)
  num_valid = array(layout, (), dtype=jnp.int32)
  call = jax.jit(run, donate_argnums=(5,))
  return call.lower(queries, *sources, num_valid, (reads, lse), sources).compile()


def compile_merge(layout, adds, normed, tokens, width, dtype=jnp.bfloat16):
  """A merge with its gradients."""

  def run(operands, last_valid, cotangents):
    def merge(operands):
      return depth_attention_merge(slot=2, **operands, last_valid=last_valid, layout=layout)

    out, vjp = jax.vjp(merge, operands)
    return out[:2], vjp(cotangents)

  source = array(layout, TOKENS, *tokens, width, dtype=dtype)
  row = array(layout, (None,), width, dtype=jnp.float32)
  lse = array(layout, (None, *TOKENS[:2]), 3, *tokens, dtype=jnp.float32)
  reads = BlockRead(array(layout, (None, *TOKENS), 3, *tokens, width, dtype=dtype), lse, None)
  operands = {"reads": reads, "running": source, "query": row}
  operands |= {"addend": source} if adds else {}
  operands |= {"out_norm_scale": row} if normed else {}
  last_valid = array(layout, (), dtype=jnp.bool_)
  cotangents = source, source, reads
  return jax.jit(run, donate_argnums=(2,)).lower(operands, last_valid, cotangents).compile()


def num_kernels(compiled):
  return compiled.as_text().count('custom_call_target="tpu_custom_call"')


@needs_libtpu
@pytest.mark.parametrize("chip", TPU_CHIPS)
def test_phase_1(chip):
  compiled = compile_block(layout_of(chip), 5, 1, 4, (1, 8192), 2048)
  assert num_kernels(compiled) == 2
  # No copy of a source, nor of its cotangent.
  assert compiled.memory_analysis().temp_size_in_bytes < 8192 * 2048 * 2


@needs_libtpu
@pytest.mark.parametrize("chip", TPU_CHIPS)
def test_a_merge(chip):
  compiled = compile_merge(layout_of(chip), True, True, (1, 512), 1024)
  assert num_kernels(compiled) == 2


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("chip", TPU_CHIPS)
@pytest.mark.parametrize(
  "sizes",
  [
    (8, 0, 8, (1, 2048), 2048),
    (0, 9, 8, (1, 2048), 7168),
    (63, 1, 12, (1, 1024), 1536),
    (3, 1, 2, (1, 1000), 384, jnp.float32),
    (1, 0, 1, (1, 5), 128),
  ],
  ids=str,
)
def test_other_sizes_of_phase_1(chip, sizes):
  fits = chip != "v4" or (sizes[1] != 9 and sizes[0] != 63)
  assert num_kernels(compile_block(layout_of(chip), *sizes)) == (2 if fits else 0)


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("chip", TPU_CHIPS)
@pytest.mark.parametrize(
  "sizes",
  [
    (True, False, (1, 2048), 2048),
    (False, True, (1, 2048), 7168),
    (False, False, (1, 5), 128),
    (True, True, (1, 1000), 384, jnp.float32),
  ],
  ids=str,
)
def test_other_sizes_of_a_merge(chip, sizes):
  fits = chip != "v4" or sizes[3] != 7168
  assert num_kernels(compile_merge(layout_of(chip), *sizes)) == (2 if fits else 0)


@needs_libtpu
@pytest.mark.slow
def test_gradient_over_four_chips_exchanges_queries_and_gains_alone():
  layout = layout_of("v5e", data=2, sequence=2)

  def loss(queries, gain, bank, addends, num_valid):
    read = depth_attention_block(Sources((), bank, num_valid), queries, layout=layout)
    running, total = jnp.zeros_like(addends[0]), 0.0
    for s, query in enumerate(queries):
      y, running, read = depth_attention_merge(
        read, s, running, query, addend=addends[s], out_norm_scale=gain,
        last_valid=s > 0, layout=layout,
      )  # fmt: skip
      total += jnp.sum(jnp.sin(y.astype(jnp.float32)))
    return total

  tokens = None, *TOKENS
  gradient = jax.jit(jax.grad(loss, (0, 1, 2, 3)))
  text = gradient.lower(
    array(layout, (None, None), 2, 256, dtype=jnp.float32),
    array(layout, (None,), 256, dtype=jnp.float32),
    array(layout, tokens, 3, 8, 128, 256),
    array(layout, tokens, 2, 8, 128, 256),
    array(layout, (), dtype=jnp.int32),
  ).compile().as_text()  # fmt: skip
  assert text.count('custom_call_target="tpu_custom_call"') == 6
  assert "all-gather" not in text and "all-to-all" not in text
