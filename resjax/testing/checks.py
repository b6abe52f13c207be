"""What every combinator owes, as checks: functions of a `Subject` that raise AssertionError.

The reference of most is the loop over layers written out by hand (`toy.by_hand`), in float64: the
gradient of a scalar is a sum that may cancel, and what float32 leaves of it proves little.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax.combinators import Combinator, PreNorm, Standard, TokenContext, costs
from resjax.combinators.base import OUTPUT, SIZES
from resjax.sharding import Layout, MeshConfig, Rules, ShardingConfig, make_layout
from resjax.testing import toy
from resjax.testing.compare import assert_close, norm, relative_errors
from resjax.typing import PyTree

_EPS = 0.03  # of fused norms: not the eps of any combinator
_TOLERANCE = 1e-12  # in float64
_ALIKE = 1e-5  # in float32, for what a norm makes equal up to its eps


@dataclasses.dataclass(frozen=True, eq=False)  # hashed by identity
class Subject:
  """A combinator that is checked.

  Attributes:
    make: make(num_layers=, d_model=, sites=, layout=, rngs=) returns a fresh one.
    num_layers: how many layers it is checked with.
    dead: parameter -> index prefixes where the gradient is exactly zero, whatever the values are;
      everywhere else no element may be zero.
    value_and_gradients: `toy.jitted`, or `toy.value_and_gradients` where one program of all layers
      takes long to compile.
  """

  make: Callable[..., Combinator]
  num_layers: int = 3
  dead: Mapping[str, tuple] = dataclasses.field(default_factory=dict)
  value_and_gradients: Callable[..., Any] = toy.jitted

  def fresh(self, **changes: Any) -> Combinator:
    """Returns a new one with its initial values."""
    sizes = {"num_layers": self.num_layers, "d_model": toy.D, "sites": toy.SITES}
    made = self.make(**{**sizes, "rngs": nnx.Rngs(0), **changes})
    made.scaled_init = True  # as far as any gain can be right in a toy
    return made

  def abstract(self, **changes: Any) -> Combinator:
    """Returns one with shapes for parameters."""
    made: Combinator = nnx.eval_shape(lambda: self.fresh(**changes))
    return made

  def moved(self) -> Combinator:
    """Returns one with random parameters in float32."""
    return toy.moved(self.fresh())

  def inputs(self, dtype: Any = np.float32) -> tuple[PyTree, jax.Array]:
    """Returns the parameters of the branches, and the embeddings."""
    return toy.layers(self.num_layers, dtype=dtype), jax.device_put(toy.embeddings(dtype))

  def network(self, made: Combinator | None = None) -> tuple[Combinator, PyTree, jax.Array]:
    """Returns a combinator, `moved` by default, with the branches and embeddings, in float64."""
    graphdef, state = nnx.split(made or self.moved())  # drawn outside: x64 draws others
    with jax.enable_x64(True):
      state = jax.device_put(jax.tree.map(np.float64, state))
      return nnx.merge(graphdef, state), *self.inputs(np.float64)

  @functools.cached_property
  def expected(self) -> PyTree:
    """Value and gradients of the loop by hand."""
    return self.by_hand(*self.network())

  def by_hand(self, *network: Any) -> PyTree:
    """Returns value and gradients of the loop by hand for a `network`."""
    with jax.enable_x64(True):
      return jax.tree.map(np.asarray, self.value_and_gradients(toy.by_hand, *network))


Check = Callable[[Subject], None]


def protocol(subject: Subject) -> None:
  """It takes sizes and keeps them, and its views, states and outputs have their shapes."""
  sites = ("one", "two", "three")
  made = subject.abstract(sites=sites)
  assert isinstance(made, Combinator), f"it is a {type(made).__name__}, and no Combinator"
  sizes, wanted = (made.num_layers, made.d_model, made.sites), (subject.num_layers, toy.D, sites)
  assert sizes == wanted, f"it was made for {wanted} and has {sizes}; pass them on to super()"
  for name, parameter in inspect.signature(type(made)).parameters.items():
    assert name in SIZES or parameter.default is not parameter.empty, f"{name} has no default"
  shape = (2, 5, toy.D)

  def walk(x: jax.Array) -> jax.Array:
    made = subject.fresh(sites=sites)
    state = made.init(x)
    for layer in range(made.num_layers):
      for site in made.sites:
        views, tape = made.read(state, layer, site)
        named = made.view_names(site)
        assert set(views) == set(named), f"read gives {set(views)}, view_names says {set(named)}"
        assert "x" in views, "read gives no view x"
        for name, view in views.items():
          assert view.shape == shape, f"view {name} has shape {view.shape}, not {shape}"
        state = made.write(state, layer, site, x, normed=views, tape=tape)
    return made.final(state)

  output = jax.eval_shape(walk, jax.ShapeDtypeStruct(shape, jnp.float32))
  assert output.shape == shape, f"final gives {output.shape}, not {shape}"


def declarations(subject: Subject) -> None:
  """What it declares of its parameters exists, and rows of `per_layer` are layers."""
  made = subject.abstract()
  params = nnx.to_pure_dict(nnx.state(made))
  for declared in ("decayed_parameters", "per_layer"):
    unknown = set(getattr(made, declared)) - set(params)
    assert not unknown, f"{declared} names {unknown}; its parameters are {set(params)}"
  for name in made.per_layer:
    assert len(params[name]) == made.num_layers, (
      f"{name} is in per_layer, and its first axis is {len(params[name])}, not the number of layers"
    )


def counts(subject: Subject) -> None:
  """Parameters, bytes of the state and FLOPs are what arrays and a trace say."""
  made = subject.moved()
  size = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(made)))
  said = made.num_parameters()
  assert said == size, f"num_parameters says {said}, there are {size}"
  layers, x = subject.inputs()
  last = jax.eval_shape(lambda: _arrays([*toy.states_by_hand(made, layers, x)][-1]))
  held = sum(leaf.size * leaf.dtype.itemsize for leaf in last)
  said = made.state_bytes_per_token(x.dtype) * toy.B * toy.T
  assert said == held, f"by state_bytes_per_token the last state has {said} bytes, not {held}"
  flops = made.flops_per_token()
  if type(made).flops_per_token is not Combinator.flops_per_token:
    try:
      counted = costs.flops_per_token(made)
    except ValueError:  # it runs a kernel of its own, into which no count can look
      return
    assert flops == counted, f"flops_per_token says {flops}, its trace has {counted}"


def _arrays(state: PyTree) -> list[jax.Array]:
  return [leaf for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)]


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
  return toy.depth.run(combinator, layers, x, branch, pre_norms=norms, unroll=unroll)


def _with_separate_norms(combinator: Combinator, layers: PyTree, x: jax.Array) -> jax.Array:
  return toy.depth.run(combinator, layers, x, _normalise, unroll=True)


def _normalise(layer: PyTree, site: str, views: Any, context: PyTree = None) -> Any:
  views = {name: PreNorm(layer[site]["gain"], _EPS)(x) for name, x in views.items()}
  return toy.branch(layer, site, views, pre_norm=False)


def causal(subject: Subject) -> None:
  """No output depends on a later token; without a `decode_cache` tokens are kept apart."""
  found = tokens_seen(subject, mixes=True)
  assert (found[np.triu_indices(toy.T, 1)] == 0).all(), "an output depends on a later token"
  assert (found[np.tril_indices(toy.T)] > 0).all(), "an output misses an earlier token"
  local = tokens_seen(subject, mixes=False)
  mixes = subject.abstract().decode_cache(1, "float32") is not None
  assert (local.diagonal() > 0).all(), "an output does not depend on its own token"
  seen = bool((local[~np.eye(toy.T, dtype=bool)] > 0).any())
  assert seen == mixes, (
    "it mixes tokens and has no decode_cache, which decoding needs"
    if seen
    else "it has a decode_cache and mixes no tokens"
  )


def tokens_seen(subject: Subject, *, mixes: bool) -> np.ndarray:
  """Returns the largest |d output of token t / d input of token s| [T, T].

  Args:
    subject: what is checked.
    mixes: whether the branches mix tokens, causally.
  """
  x = toy.embeddings()[:1]
  return np.abs(_jacobian(subject)(x, mixes)).max(axis=(1, 2, 4))


@functools.lru_cache(maxsize=1)
def _jacobian(subject: Subject) -> Callable[..., jax.Array]:
  made, layers = subject.moved(), toy.layers(subject.num_layers)

  def output(x: jax.Array, mixes: jax.Array) -> jax.Array:
    branch = functools.partial(toy.branch, mix_tokens=mixes)
    return toy.by_hand(made, layers, x, branch)[0]

  return jax.jit(jax.jacrev(output))


def decoding(subject: Subject) -> None:
  """Tokens in chunks, each with the cache of those before, give what all give together."""
  made, (layers, x) = subject.moved(), subject.inputs()
  branch = functools.partial(toy.token_local_branch, pre_norm=made.pre_norm)
  graphdef, state = nnx.split(made)

  @jax.jit
  def some(state: PyTree, x: jax.Array, cache: PyTree) -> tuple[jax.Array, PyTree]:
    made, tokens = nnx.merge(graphdef, state), TokenContext(jnp.ones(x.shape[:2], jnp.int32), cache)
    unroll = made.strategy == "loop"
    last, _ = toy.depth.run_layers(made, layers, x, branch, tokens=tokens, unroll=unroll)
    return made.final(last), made.next_cache(last)

  want, _ = some(state, x, made.decode_cache(toy.B, x.dtype))
  cache, parts = made.decode_cache(toy.B, x.dtype), []
  for start, end in ((0, 2), (2, 3), (3, toy.T)):
    out, cache = some(state, x[:, start:end], cache)
    parts.append(out)
  assert_close(jnp.concatenate(parts, axis=1), want, _ALIKE)
  assert_close(want, toy.run(made, layers, x, toy.token_local_branch, unroll=True), _ALIKE)


def mesh(subject: Subject) -> None:
  """On two devices, if there are, values and gradients are those of one."""
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


def init(subject: Subject) -> None:
  """What claims to be `standard` at init computes that, also without pre-norms if it says so."""
  fresh, standard = subject.fresh(), Standard(num_layers=subject.num_layers, d_model=toy.D)
  if not fresh.equals_standard_at_init:
    return
  layers, x = subject.inputs()
  got, (_, *found) = toy.jitted(normed_output, fresh, layers, x)
  want, (_, *wanted) = toy.jitted(normed_output, standard, layers, x)
  remedy = "; set equals_standard_at_init = False where that is meant"
  _assert_alike(got, want, f"a fresh one is not `standard`{remedy}")
  _assert_alike(found, wanted, f"gradients of a fresh one are not those of `standard`{remedy}")
  if not fresh.needs_pre_norms:
    remedy = "; set needs_pre_norms = True"
    got, want = outputs_without_norms(subject)
    _assert_alike(got, want, f"without pre-norms a fresh one is not `standard`{remedy}")


def outputs_without_norms(subject: Subject) -> list[jax.Array]:
  """Returns the normed outputs of a fresh one and of `standard`, whose branches have no norms."""
  standard = Standard(num_layers=subject.num_layers, d_model=toy.D)
  return [
    toy.rms_norm(toy.compiled_by_hand(made, *subject.inputs(), _bare), eps=1e-20)
    for made in (subject.fresh(), standard)
  ]


def _assert_alike(got: PyTree, want: PyTree, otherwise: str) -> None:
  error = max(relative_errors(got, want).values())
  assert error <= _ALIKE, f"{otherwise} (relative error {error:.1e})"


# Reads may be the stream times a constant, which a norm removes only if its eps is negligible.
scale_free = functools.partial(toy.branch, eps=1e-20)


def normed_output(combinator: Combinator, layers: PyTree, x: jax.Array) -> jax.Array:
  """Returns the output through a norm without scale, as are those before branches."""
  y = toy.run(combinator, layers, x, scale_free, unroll=combinator.strategy == "loop")
  return toy.rms_norm(y, eps=1e-20)


def _bare(*arguments: Any, **options: Any) -> Any:
  """A branch that reads what no norm has touched."""
  return toy.branch(*arguments, **options | {"pre_norm": False})


def early_output(subject: Subject) -> None:
  """`final_after` the last site is `final`, and `depth_weights` fit their sources."""
  made, (layers, x) = subject.moved(), subject.inputs()
  *_, last = toy.states_by_hand(made, layers, x)
  place = made.num_layers - 1, made.sites[-1]
  assert_close(made.final_after(last, *place), made.final(last), _ALIKE)
  weights = made.depth_weights(last, made.num_layers, OUTPUT)
  if weights is not None:
    count = len(made.source_names())
    assert weights.shape[0] == count, f"{weights.shape[0]} depth_weights, {count} source_names"


# By the name that a failure gives; in the order in which they run.
CHECKS: dict[str, Check] = {
  check.__name__: check
  for check in (
    protocol, declarations, counts, loop, loop_with_remat, scan, scan_with_remat,
    scan_that_keeps_products, gradients, bfloat16, fused_norms, causal, decoding, mesh, init,
    early_output,
  )
}  # fmt: skip
