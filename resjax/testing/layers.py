"""Checks of values and gradients, however the layers run: in a loop, a scan, bfloat16, on a mesh.

The reference of most is the loop over layers written out by hand (`toy.by_hand`), in float64: the
gradient of a scalar is a sum that may cancel, and what float32 leaves of it proves little.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax.base import PyTree
from resjax.base.sharding import Layout, MeshConfig, Rules, ShardingConfig, make_layout
from resjax.combinators import Combinator, PreNorm
from resjax.models import depth
from resjax.testing import toy
from resjax.testing.compare import assert_close, norm
from resjax.testing.subject import Subject

_EPS = 0.03  # of fused norms: not the eps of any combinator
_TOLERANCE = 1e-12  # in float64


def loop(subject: Subject, remat: str = "none") -> None:
  """The Python loop of `depth.run` is the loop by hand."""
  forward = functools.partial(toy.run, unroll=True, remat=remat)
  _assert_expected(subject, subject.value_and_gradients, forward)


def loop_with_remat(subject: Subject) -> None:
  """The Python loop with recomputation is the loop by hand."""
  loop(subject, "full")


def scan(subject: Subject, remat: str = "none") -> None:
  """The scan of `depth.run` is the loop by hand; a `loop` combinator says that it has none."""
  if subject.abstract().strategy != "loop":
    _assert_expected(subject, toy.jitted, functools.partial(toy.run, remat=remat))


def scan_with_remat(subject: Subject) -> None:
  """The scan with recomputation is the loop by hand."""
  scan(subject, "full")


def scan_that_keeps_products(subject: Subject) -> None:
  """The scan that recomputes all but linear maps is the loop by hand."""
  scan(subject, "dots")


def _assert_expected(subject: Subject, compute: Callable[..., Any], forward: toy.Forward) -> None:
  want, network = subject.expected, subject.network()
  with jax.enable_x64(True):
    got = compute(forward, *network)
  dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(got)}
  assert dtypes == {"float64"}, f"float64 becomes {dtypes}"
  assert_close(got, want, _TOLERANCE)


def gradients(subject: Subject) -> None:
  """Random parameters have gradients everywhere but where they are `dead`."""
  _, (params, *others) = subject.expected
  check_dead(params, subject.dead, params)
  for leaf in jax.tree.leaves(others):
    assert np.isfinite(leaf).all() and norm(leaf) > 0, "branches or embeddings get no gradient"


def check_dead(
  found: Mapping[str, PyTree], dead: Mapping[str, tuple], names: Iterable[str]
) -> None:
  """Asserts that exactly the elements under the index prefixes of `dead` are zero."""
  unknown = set(dead) - set(found)
  assert not unknown, f"dead names {unknown}, which are no parameters"
  for name in names:
    for gradient in jax.tree.leaves(found[name]):  # one, or one per layer
      zero = np.zeros(gradient.shape, bool)
      for prefix in dead.get(name, ()):
        zero[prefix] = True
      assert np.isfinite(gradient).all(), f"the gradient of {name} is not finite"
      silent, alive = (gradient == 0) & ~zero, (gradient != 0) & zero
      assert not silent.any(), (
        f"{name} gets no gradient at {_where(silent)}; a read or write must use it, or say so: "
        f"dead={{{name!r}: ({_where(silent)},)}}"
      )
      assert not alive.any(), f"{name} has a gradient at {_where(alive)}, where it should be dead"


def _where(flags: np.ndarray) -> tuple[int, ...]:
  return tuple(int(i) for i in np.argwhere(flags)[0])


def bfloat16(subject: Subject) -> None:
  """bfloat16 activations with float32 parameters give the values up to their rounding."""
  want, want_gradients = subject.expected
  made, (layers, x) = subject.moved(), subject.inputs()
  is_jitted = subject.value_and_gradients is toy.jitted and made.strategy != "loop"
  compute = _scan_with_every_rounding if is_jitted else _loop_by_operations
  got, found = compute(made, layers, x.astype(jnp.bfloat16))
  _assert_dtype("the output", [got], jnp.bfloat16)
  _assert_dtype("the gradient of the embeddings", [found[2]], jnp.bfloat16)
  _assert_dtype("a parameter", jax.tree.leaves(nnx.state(made)), jnp.float32)
  _assert_dtype("a gradient of parameters", jax.tree.leaves(found[:2]), jnp.float32)
  # Every sublayer rounds its input, hidden layer, output and the stream once or twice.
  rounding = float(jnp.finfo(jnp.bfloat16).eps) * np.sqrt(4 * made.num_sublayers)
  assert_close(got, want, rounding)
  assert_close(found, want_gradients, 3 * rounding, floor=0.3)


def _assert_dtype(what: str, leaves: Sequence[jax.Array], dtype: Any) -> None:
  found = {str(leaf.dtype) for leaf in leaves}
  assert found <= {jnp.dtype(dtype).name}, f"{what} is {found}, not {jnp.dtype(dtype).name}"


def _scan_with_every_rounding(made: Combinator, *arrays: Any) -> Any:
  """Returns value and gradients of one program, with also the roundings within one kernel."""
  graphdef, state = nnx.split(made)

  def compute(state: PyTree, *arrays: Any) -> Any:
    return toy.value_and_gradients(toy.run, nnx.merge(graphdef, state), *arrays)

  options = {"xla_allow_excess_precision": False}
  return jax.jit(compute, compiler_options=options)(state, *arrays)


def _loop_by_operations(made: Combinator, *arrays: Any) -> Any:
  return toy.value_and_gradients(functools.partial(toy.run, unroll=True), made, *arrays)


def fused_norms(subject: Subject) -> None:
  """Reads that normalise (`read_normed`) in a scan are norms of reads in a loop."""
  network = subject.network()
  with jax.enable_x64(True):
    want = toy.jitted(_with_separate_norms, *network)
    got = toy.jitted(with_fused_norms, *network)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=_TOLERANCE * max(1, np.abs(b).max()))


def with_fused_norms(combinator: Combinator, layers: PyTree, x: jax.Array) -> jax.Array:
  """Returns the output where every view has a `PreNorm`, which a read may fuse."""

  def norms(layer: PyTree, site: str) -> dict[str, PreNorm]:
    return dict.fromkeys(combinator.view_names(site), PreNorm(layer[site]["gain"], _EPS))

  branch, unroll = functools.partial(toy.branch, pre_norm=False), combinator.strategy == "loop"
  return depth.run(combinator, layers, x, branch, pre_norms=norms, unroll=unroll)


def _with_separate_norms(combinator: Combinator, layers: PyTree, x: jax.Array) -> jax.Array:
  return depth.run(combinator, layers, x, _normalise, unroll=True)


def _normalise(layer: PyTree, site: str, views: Any, context: PyTree = None) -> Any:
  views = {name: PreNorm(layer[site]["gain"], _EPS)(x) for name, x in views.items()}
  return toy.branch(layer, site, views, pre_norm=False)


def mesh(subject: Subject) -> None:
  """On two devices, if there are, values and gradients equal those on one device."""
  if jax.device_count() < 2:
    return
  layout = two_devices()
  made = subject.moved()
  split = subject.fresh(layout=layout)
  nnx.update(split, nnx.state(made))
  want = subject.expected  # outside: x64 draws other parameters
  with jax.enable_x64(True):
    network = subject.network(split)
    whole, rows = layout.everywhere, layout.sharding("batch", None, None)
    graphdef, state = nnx.split(network[0])
    state, layers = jax.device_put((state, network[1]), whole)
    x = jax.device_put(network[2], rows)
    forward = functools.partial(toy.run, unroll=made.strategy == "loop")
    got = toy.jitted(forward, nnx.merge(graphdef, state), layers, x)
  assert_close(got, want, _TOLERANCE)


def two_devices() -> Layout:
  """Returns a layout over two devices that share the batch."""
  axes = {field.name: () for field in dataclasses.fields(Rules)}
  rules = Rules(**{**axes, "batch": ("data",)})
  return make_layout(MeshConfig(), ShardingConfig("data", rules), jax.devices()[:2])
