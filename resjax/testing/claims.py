"""Checks of a combinator's claims about itself: its shapes, parameters, costs, start and output."""

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from resjax.base import PyTree
from resjax.combinators import OUTPUT, SIZES, Combinator, Standard, costs
from resjax.testing import toy
from resjax.testing.compare import ALIKE, assert_close, relative_errors
from resjax.testing.subject import Subject


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
  """Parameters, bytes of the state and FLOPs equal what arrays and a trace have."""
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
  assert error <= ALIKE, f"{otherwise} (relative error {error:.1e})"


# Reads may be the stream times a constant, which a norm removes only if its eps is negligible.
_scale_free = functools.partial(toy.branch, eps=1e-20)


def normed_output(combinator: Combinator, layers: PyTree, x: jax.Array) -> jax.Array:
  """Returns the output through a norm without scale, as are those before branches."""
  y = toy.run(combinator, layers, x, _scale_free, unroll=combinator.strategy == "loop")
  return toy.rms_norm(y, eps=1e-20)


def _bare(*arguments: Any, **options: Any) -> Any:
  """A branch without pre-norm."""
  return toy.branch(*arguments, **options | {"pre_norm": False})


def early_output(subject: Subject) -> None:
  """`final_after` the last site is `final`, and `depth_weights` fit their sources."""
  made, (layers, x) = subject.moved(), subject.inputs()
  *_, last = toy.states_by_hand(made, layers, x)
  place = made.num_layers - 1, made.sites[-1]
  assert_close(made.final_after(last, *place), made.final(last), ALIKE)
  weights = made.depth_weights(last, made.num_layers, OUTPUT)
  if weights is not None:
    count = len(made.source_names())
    assert weights.shape[0] == count, f"{weights.shape[0]} depth_weights, {count} source_names"
