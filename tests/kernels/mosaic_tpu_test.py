"""The TPU kernels in the interpreter: it looks for races, and memory starts as NaN."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from resjax.base.sharding import Layout
from resjax.kernels.depth_attention import Sources, depth_attention
from resjax.kernels.depth_attention.mosaic_tpu import direct_backward, direct_forward
from resjax.kernels.depth_attention.mosaic_tpu.tiles import TpuTiles
from resjax.kernels.depth_attention.operands import Operands, Read
from resjax.kernels.depth_attention.reference import direct as reference_backend
from resjax.testing.compare import assert_close
from tests.helpers import layouts, reference

EPS = 1e-6
INTERPRET = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
BFLOAT16, FORWARD, GRADIENT = 4e-3, 2e-6, 1e-5

kernel = functools.partial(
  depth_attention, implementation="mosaic_tpu", interpret=INTERPRET, eps=EPS
)


def example(count, width, tokens=(2, 11), dtype=np.float32, seed=0):
  """query, gain, sources, cotangent; numbers that `dtype` holds, a query with logits of order 1."""
  rng = np.random.default_rng(seed)
  query, gain = rng.normal(size=width) / np.sqrt(width), rng.normal(size=width)
  sources, dh = rng.normal(size=(count, *tokens, width)), rng.normal(size=(*tokens, width))
  held = [np.float64(jnp.asarray(a, dtype)) for a in (sources, dh)]
  return [np.float64(np.float32(a)) for a in (query, gain)] + held


@pytest.fixture(autouse=True)
def no_races(capfd):
  """The interpreter prints the races that it finds."""
  yield
  assert "RACE" not in capfd.readouterr().out


def read_list(query, gain, values):
  return kernel(list(values), query, key_scale=gain)


@functools.partial(jax.jit, static_argnames="read")
def read_and_gradients(query, gain, values, dh, read=read_list):
  h, vjp = jax.vjp(read, query, gain, values)
  return h, vjp(dh)


def check(query, gain, values, dh, dtype=np.float32, read=read_list):
  """Values and gradients of a read of all values against float64 numpy."""
  arguments = (
    np.float32(query),
    np.float32(gain),
    jnp.asarray(values, dtype),
    jnp.asarray(dh, dtype),
  )
  h, gradients = read_and_gradients(*arguments, read=read)
  want = reference.depth_read(query, gain, values, EPS)
  wants = reference.depth_read_gradients(query, gain, values, EPS, dh)
  exact = dtype == np.float32
  assert_close(h, want, FORWARD if exact else BFLOAT16)
  assert_close(gradients, wants, GRADIENT if exact else BFLOAT16)


@pytest.mark.parametrize(
  ("count", "width", "dtype"),
  [
    (1, 384, np.float32),
    (2, 2048, jnp.bfloat16),
    (5, 128, np.float32),
    (9, 128, jnp.bfloat16),
    pytest.param(16, 128, jnp.bfloat16, marks=pytest.mark.release),
    pytest.param(2, 1536, np.float32, marks=pytest.mark.slow),
    pytest.param(1, 7168, jnp.bfloat16, marks=pytest.mark.release),
  ],
)
def test_values_and_gradients_are_those_of_numpy(count, width, dtype):
  check(*example(count, width, dtype=dtype), dtype)


# For more numbers per token the interpreter takes a minute, for a list of arrays minutes.
SIZES = [
  (count, width)
  for count in (1, 2, 5, 9, 16, 64)
  for width in (128, 384, 1536, 2048, 7168)
  if count * width <= 16 * 2048
]


@pytest.mark.release
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_all_counts_and_widths(size):
  dtype = (np.float32, jnp.bfloat16)[SIZES.index(size) % 2]
  check(*example(*size, (19,), dtype), dtype)


@pytest.mark.parametrize(
  ("count", "width", "dtype"),
  [
    (20, 128, jnp.bfloat16),  # five groups; registers of rows that are not full
    pytest.param(64, 128, jnp.bfloat16, marks=pytest.mark.release),
    pytest.param(64, 1536, np.float32, marks=pytest.mark.release),
    pytest.param(64, 2048, jnp.bfloat16, marks=pytest.mark.release),
    pytest.param(16, 7168, np.float32, marks=pytest.mark.release),
  ],
)
@pytest.mark.slow
def test_many_sources_in_a_bank(count, width, dtype):
  def read_bank(query, gain, bank):
    return kernel(Sources((), bank, count), query, key_scale=gain)

  check(*example(count, width, (11,), dtype), dtype, read_bank)


@pytest.mark.parametrize("tokens", [(), (3, 1, 5)])
def test_any_leading_axes(tokens):
  check(*example(1, 128, tokens))


def test_zero_query_is_the_mean():
  _, gain, values, dh = example(5, 128)
  query = np.zeros(128)
  h, _ = read_and_gradients(*map(np.float32, (query, gain, values, dh)))
  assert_close(h, values.mean(axis=0), FORWARD)
  check(query, gain, values, dh)


def test_equal_logits():
  query, gain, values, dh = example(5, 128)
  query[4:] = 0
  # The same length and product with the query, another direction.
  signs = np.random.default_rng(1).choice([-1.0, 1.0], values.shape)
  signs[..., :4] = 1
  check(query, gain, values[:1] * signs, dh)


@pytest.mark.parametrize("exponents", [(15, -15, 0, 5, 1), (-15,) * 5, (17,) * 5])
def test_huge_and_tiny_sources(exponents):
  query, gain, values, dh = example(5, 128)
  values = np.float64(np.float32(values * 10.0 ** np.array(exponents)[:, None, None, None]))
  h, gradients = read_and_gradients(*map(np.float32, (query, gain, values, dh)))
  assert_close(h, reference.depth_read(query, gain, values, EPS), FORWARD)
  wants = reference.depth_read_gradients(query, gain, values, EPS, dh)
  for got, want in zip(gradients[2], wants[2], strict=True):  # of very different size
    assert_close(got, want, GRADIENT, floor=0)


def test_huge_logits_select_one_source():
  query, gain, values, dh = example(5, 128)
  check(1e4 * query, gain, values, dh)


# The whole read: add and norm, sources in a bank with slots that hold nothing, threaded.


def whole(implementation, interpret, num_valid, last_valid, operands):
  query, gain, out_gain, addend, bank, recent = operands
  out, sources = depth_attention(
    Sources(tuple(recent), bank, num_valid),
    query,
    key_scale=gain,
    addend=addend,
    out_norm_scale=out_gain,
    eps=EPS,
    last_valid=last_valid,
    return_sources=True,
    implementation=implementation,
    interpret=interpret,
  )
  return out, sources.bank, sources.recent


@functools.partial(jax.jit, static_argnums=(0, 1))
def whole_and_gradients(implementation, interpret, num_valid, last_valid, operands, cotangents):
  read = functools.partial(whole, implementation, interpret, num_valid, last_valid)
  out, vjp = jax.vjp(read, operands)
  return out, vjp(cotangents)[0]


def whole_example(num_banked, num_recent, tokens, dtype=np.float32, width=128):
  rng = np.random.default_rng(0)

  def array(*shape):
    return jnp.asarray(rng.normal(size=shape), dtype)

  def sources():
    bank = array(num_banked, *tokens, width) if num_banked else None
    return bank, tuple(array(*tokens, width) for _ in range(num_recent))

  row = [jnp.asarray(rng.normal(size=width) / s, jnp.float32) for s in (np.sqrt(width), 1, 1)]
  return (*row, array(*tokens, width), *sources()), (array(*tokens, width), *sources())


@pytest.mark.parametrize(
  ("num_banked", "num_recent", "num_valid", "last_valid", "tokens"),
  [
    (0, 3, 0, False, (2, 11)),
    (6, 2, 0, True, (3, 11)),  # the bank is empty
    (6, 2, 2, True, (3, 11)),  # its second group is not touched
    (6, 2, 5, False, (3, 11)),
    # Two parts of the grid, each with several tiles: reads and writes of the bank overlap.
    (2, 1, 2, True, (512,)),
  ],
)
def test_add_norm_bank_and_threading_are_those_of_the_reference(
  num_banked, num_recent, num_valid, last_valid, tokens
):
  operands, cotangents = whole_example(num_banked, num_recent, tokens)
  want = whole_and_gradients("reference", False, num_valid, last_valid, operands, cotangents)
  *others, bank, recent = operands
  if num_banked:
    bank = bank.at[num_valid:].set(jnp.nan)
  got = whole_and_gradients(
    "mosaic_tpu", INTERPRET, num_valid, last_valid, (*others, bank, recent), cotangents
  )
  if num_banked:
    np.testing.assert_array_equal(got[0][1], bank)
    # Nothing is added to what is not valid.
    np.testing.assert_array_equal(got[1][4][num_valid:], cotangents[1][num_valid:])
  assert_close((got[0][0], got[0][2]), (want[0][0], want[0][2]), FORWARD)
  assert_close(got[1], want[1], GRADIENT)


@functools.partial(jax.jit, static_argnums=(0, 1))
def apart_and_gradients(implementation, interpret, num_valid, last_valid, operands, d_out):
  def read(query, bank, recent):
    sources = Sources(recent, bank, num_valid)
    options = {"implementation": implementation, "interpret": interpret}
    return depth_attention(sources, query, last_valid=last_valid, **options)

  out, vjp = jax.vjp(read, *operands)
  return out, vjp(d_out)


@pytest.mark.parametrize("last_valid", [False, True])
def test_bank_that_is_not_threaded_and_a_last_source_that_holds_nothing(last_valid):
  (query, *_, bank, recent), (d_out, *_) = whole_example(5, 2, (3, 7))
  want = apart_and_gradients("reference", False, 3, last_valid, (query, bank, recent), d_out)
  bank = bank.at[3:].set(jnp.nan)
  if not last_valid:
    recent = (recent[0], recent[1] * jnp.nan)
  got = apart_and_gradients("mosaic_tpu", INTERPRET, 3, last_valid, (query, bank, recent), d_out)
  assert_close(got, want, GRADIENT)
  np.testing.assert_array_equal(got[1][1][3:], 0)


@pytest.mark.parametrize(
  "sizes", [pytest.param(TpuTiles(64, 1), marks=pytest.mark.release), TpuTiles(256, 2)]
)
@pytest.mark.slow
def test_tiles_of_any_size(sizes):
  (query, _, scale, addend, bank, recent), (d_out, *d_sources) = whole_example(2, 2, (300,))
  counts = jnp.array([2, 1], jnp.int32)
  read = Read(1, EPS, True, True, implementation="mosaic_tpu", interpret=INTERPRET)

  def run(forward, backward, **options):
    operands = Operands(bank, recent, counts, query, addend, scale)
    out, running, stats = forward(read, operands, **options)
    operands = operands._replace(recent=(*recent[:-1], running), addend=None)
    return out, stats, backward(read, operands, stats, d_out, tuple(d_sources), **options)

  passes = direct_forward.forward, direct_backward.backward
  want = jax.jit(lambda: run(reference_backend.forward, reference_backend.backward))()
  got = jax.jit(lambda: run(*passes, tile_sizes=sizes))()
  assert_close(got[:2], want[:2], FORWARD)
  assert_close(got[2], want[2], GRADIENT)


# Transformations. The interpreter of TPUs knows no `checkpoint`, the plain one does.


def test_scan_with_a_bank_that_fills_and_recomputation():
  (query, *_, bank, _), _ = whole_example(4, 0, (9,))

  @functools.partial(jax.jit, static_argnums=(0, 1))
  def gradients(implementation, interpret, query, bank):
    @jax.checkpoint
    def step(x, num_valid):
      h = depth_attention(
        Sources((x,), bank, num_valid), query, implementation=implementation, interpret=interpret
      )
      return jnp.sin(h), None

    def loss(query, bank):
      h, _ = jax.lax.scan(step, bank[0], jnp.arange(3))
      return jnp.sum(h)

    return jax.value_and_grad(loss, (0, 1))(query, bank)

  want = gradients("reference", False, query, bank)
  assert_close(gradients("mosaic_tpu", True, query, bank), want, GRADIENT)


def test_vmap_over_tokens_is_a_leading_axis():
  (query, *_, bank, recent), _ = whole_example(2, 1, (3, 9))

  def loss(query, bank, recent, interpret=INTERPRET, implementation="mosaic_tpu"):
    options = {"implementation": implementation, "interpret": interpret}
    return jnp.sum(jnp.sin(depth_attention(Sources(recent, bank, 2), query, **options)))

  def batched(query, bank, recent):
    return jnp.sum(jax.vmap(loss, (None, 1, 0))(query, bank, recent))

  plain = functools.partial(loss, interpret=False, implementation="reference")
  got, want = (
    jax.jit(jax.value_and_grad(fn, (0, 1, 2)))(query, bank, recent) for fn in (batched, plain)
  )
  assert_close(got, want, GRADIENT)


def test_second_derivative_is_refused():
  (query, *_, recent), _ = whole_example(0, 2, (3,))

  def loss(query):
    return jnp.sum(kernel(list(recent), query))

  with pytest.raises(ValueError, match="no second derivative"):
    jax.hessian(loss)(query)


def test_tokens_over_eight_devices_are_those_of_one():
  layout = layouts.layout("long_context", data=2, fsdp=2, sequence=2)
  (query, *_, bank, recent), _ = whole_example(2, 1, (4, 6))
  tokens = layout.sharding("batch", "tokens"), layout.sharding(None, "batch", "tokens")

  def loss(query, bank, recent, layout, interpret):
    h = depth_attention(
      Sources(recent, bank, 2), query, layout=layout, interpret=interpret,
      implementation="mosaic_tpu" if interpret else "reference",
    )  # fmt: skip
    return jnp.sum(jnp.sin(h)), h

  def gradients(layout, interpret):
    fn = functools.partial(loss, layout=layout, interpret=interpret)
    return jax.jit(jax.grad(fn, (0, 1, 2), has_aux=True))

  want = gradients(Layout(), False)(query, bank, recent)
  placed = query, *jax.device_put((bank, recent), (tokens[1], (tokens[0],)))
  # The plain interpreter is in the program, where its communication can be seen.
  compiled = gradients(layout, True).lower(*placed).compile()
  got = compiled(*placed)
  assert_close(got, want, GRADIENT)
  assert got[1].sharding.is_equivalent_to(tokens[0], 3)
  assert got[0][1].sharding.is_equivalent_to(tokens[1], 4)
  text = compiled.as_text()
  assert "all-gather" not in text and "all-to-all" not in text
  assert text.count(" all-reduce(") == 1


@pytest.mark.parametrize(
  ("shape", "dtype", "words"),
  [
    ((128, 16, 16384), np.float32, ["MiB", "sources", "forward pass", "v5e"]),
    ((2, 16, 128), np.float16, ["float16", "bfloat16"]),
  ],
)
def test_what_a_chip_cannot_do_is_refused(shape, dtype, words):
  source = jax.ShapeDtypeStruct(shape[1:], dtype)
  query = jax.ShapeDtypeStruct(shape[2:], np.float32)
  with pytest.raises(ValueError) as refused:
    jax.eval_shape(kernel, [source] * shape[0], query)
  assert all(word in str(refused.value) for word in [*words, "mosaic_tpu"]), refused.value
