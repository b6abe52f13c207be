"""Bad options are refused with what was given and what is allowed."""

import dataclasses
import functools
import inspect
import pydoc
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.combinators import Standard, registry
from resjax.combinators.base import SIZES
from resjax.models.config import ResidualConfig
from resjax.models.residual_stream import ResidualStream, branch_init
from resjax.testing import toy
from tests.helpers import decoders
from tests.helpers.systems import BAD_OPTIONS


def build(name, num_layers=3, **options):
  sizes = {"num_layers": num_layers, "d_model": toy.D, "rngs": nnx.Rngs(0)}
  return combinators.build(name, **sizes, scaled_init=True, **options)


@pytest.mark.parametrize(
  "name, options, message",
  [
    ("atn_res", {}, ["'atn_res' is not", "did you mean 'attn_res'", "block_attn_res"]),
    ("zzz", {}, ["'zzz' is not a combinator", "registered: standard, attenuation"]),
    ("standard", {"num_layers": 0}, ["num_layers=0", "at least 1", "config.model.num_layers"]),
    ("standard", {"sites": ("mlp", "mlp")}, ["('mlp', 'mlp')", "different names"]),
    ("standard", {"sites": ()}, ["sites=()", "one or more"]),
    *BAD_OPTIONS,
  ],
)
def test_bad_options_are_refused(name, options, message):
  with pytest.raises(ValueError) as raised:
    build(name, **options)
  for part in message:
    assert part in str(raised.value)
  assert "\n" not in str(raised.value)


def test_options_may_be_numbers_of_other_libraries():
  made = build("block_attn_res", layers_per_block=jnp.int32(2))
  assert type(made.layers_per_block) is int and made.layers_per_block == 2
  assert build("attenuation", layers=np.array([1])).factors[1] == (0.5, 0.5)


def held(name, num_layers):
  """Bytes of the last state per token; nothing is computed."""
  made = nnx.eval_shape(lambda: build(name, num_layers=num_layers))
  return made.state_bytes_per_token(jnp.float32)


def test_growing_states_refuse_a_traced_layer():
  named = {name: nnx.eval_shape(lambda n=name: build(n)) for name in combinators.names()}
  growing = [n for n in named if named[n].strategy != "carry" and held(n, 9) > held(n, 3)]
  assert len(growing) >= 10
  for name in growing:
    made = build(name)
    state = made.init(jnp.ones((1, 2, toy.D)))

    def write(layer, made=made, state=state):
      return made.write(state, layer, "mlp", jnp.ones((1, 2, toy.D)))

    with pytest.raises(ValueError, match=r"layer=.* is traced.*resjax\.models\.depth\.run"):
      jax.jit(write)(0)


def test_gates_of_tokens_need_the_normalised_input():
  x = jnp.ones((1, 2, toy.D))
  for granularity in ("token", "channel"):
    with pytest.raises(ValueError, match=f"granularity='{granularity}' needs write.*normed"):
      build("gate", granularity=granularity).write(x, 0, "mlp", x)


def test_a_gain_of_branches_that_no_model_knows_of_is_refused():
  """In a loop by hand, in `depth.run` and in a stream, whoever made the combinator."""
  layers, x = toy.layers(3), jnp.asarray(toy.embeddings())
  sizes = {"num_layers": 3, "d_model": toy.D}
  for made in (combinators.DeepNorm(**sizes), combinators.build("deepnorm", **sizes, rngs=None)):
    for start in (made.init, functools.partial(ResidualStream.start, made)):
      with pytest.raises(ValueError, match=r"DeepNorm starts branches 0\.452 .*scaled_init = True"):
        jax.eval_shape(start, x)
    with pytest.raises(ValueError, match=r"leave out norms before branches \(pre_norm is False\)"):
      jax.jit(lambda x, made=made: toy.run(made, layers, x))(x)
  branch_init(made, nnx.initializers.ones)
  assert toy.run(made, layers, x).shape == x.shape
  plain = combinators.build("deepnorm", **sizes, rngs=None, scaled_init=True)
  assert plain.init(x) is not None


@pytest.mark.parametrize("name", ["muddformer", "deep_cross_attention"])
def test_a_model_that_keeps_quiet_about_views_is_refused(name):
  made = build(name)
  x = jnp.ones((1, 2, toy.D))
  state = made.init(x)
  for normed, words in ((None, "pass normed="), ({"x": x}, "leaves out q, k, v")):
    with pytest.raises(ValueError, match=f"'attention' is given the views .*{words}"):
      jax.eval_shape(lambda n=normed: made.write(state, 0, "attention", x, normed=n))


def test_every_system_has_a_family():
  families = {combinators.get(name).family for name in combinators.names()}
  assert families == set(combinators.FAMILIES) - {"others"}


def test_a_config_can_hold_every_option_of_every_combinator():
  for name in combinators.names():
    assert combinators.settings(name) == combinators.options(name), name


def test_signatures_name_sizes_and_all_options_with_types():
  for name in combinators.names():
    parameters = inspect.signature(combinators.get(name)).parameters
    assert set(parameters) == {*combinators.options(name), *SIZES}, name
    for parameter in parameters.values():
      assert parameter.kind is parameter.KEYWORD_ONLY
      assert parameter.annotation is not parameter.empty, (name, parameter)


def test_help_shows_options_and_defaults():
  text = pydoc.render_doc(combinators.BlockAttnRes, renderer=pydoc.plaintext)
  call = re.search(r"class BlockAttnRes\(.*\n \|  (BlockAttnRes\(.*\))", text)[1]
  for part in ("num_layers: int,", "layers_per_block: int = 3", "num_heads: int = 1", "eps: float"):
    assert part in call
  assert "kwargs" not in call and "options" not in call


@pytest.fixture
def own_registry(monkeypatch):
  monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


class Halved(Standard):
  def __init__(self, *, factor: float = 0.5, **options):
    super().__init__(**options)
    self.factor = factor

  def write(self, state, layer, site, out, *, normed=None, tape=None):
    return state + self.factor * out


def test_a_registered_class_is_built_by_name_alone_and_in_a_decoder(own_registry):
  assert combinators.register("halved")(Halved) is Halved
  assert combinators.register("halved")(Halved) is Halved  # a cell of a notebook, run again
  assert combinators.options("halved") == {"factor": 0.5} and "halved" in combinators.names()
  x = jnp.ones((1, 2, toy.D))
  assert (build("halved").write(x, 0, "mlp", x) == 1.5).all()
  assert (build("halved", factor=1.0).write(x, 0, "mlp", x) == 2).all()
  config = decoders.config()
  config = dataclasses.replace(config, residual=ResidualConfig("halved", {"factor": 0.25}))
  assert decoders.decoder(config).combinator.factor == 0.25


@pytest.mark.parametrize(
  "name, cls, message",
  [
    ("standard", Halved, r"'standard' belongs to .*\.Standard; choose another"),
    ("half-life", Halved, "'half-life' cannot name a combinator; allowed: a Python identifier"),
    ("mine", nnx.Linear, "Linear.* cannot be registered; allowed: subclasses of Combinator"),
  ],
)
def test_what_cannot_be_registered_is_refused(own_registry, name, cls, message):
  with pytest.raises(ValueError, match=message):
    combinators.register(name)(cls)


@pytest.mark.parametrize(
  "name, options", [("x0_residual", {"backout": True}), ("laurel", {"variant": "pa"})]
)
def test_options_that_make_the_state_grow_refuse_a_traced_layer(name, options):
  made = build(name, **options)
  x = jnp.ones((1, 2, toy.D))
  state = made.init(x)
  _, tape = made.read(state, 0, "attention")
  with pytest.raises(ValueError, match=r"layer=.* is traced.*resjax\.models\.depth\.run"):
    jax.jit(lambda layer: made.write(state, layer, "attention", x, tape=tape))(0)


# What the papers decay, or where they do not say, matrices that multiply the stream or a view.
DECAYED = {
  "highway": {"weight"},
  "laurel": {"down", "up"},
  "gemma3n_laurel": {"down", "up"},
  "depth_attention": {"query", "key", "value", "output"},
  "hyper_connections": {"weight"},
  "mhc": {"projection"},
  "mhc_lite": {"projection"},
  "independent_hc": {"projection", "head_projection"},
  "deep_delta": {"beta_weight", "value_weight"},
  "muddformer": {"hidden", "output", "final_hidden", "final_output"},
  "gated_residual": {"down", "up", "inject", "final_down", "final_up"},
}


@pytest.mark.parametrize("name", combinators.names())
def test_decayed_parameters(name):
  made = nnx.eval_shape(lambda: build(name))
  assert set(made.decayed_parameters) == DECAYED.get(name, set())


def test_the_gate_of_delta_attention_residuals_is_decayed():
  for name in ("delta_attn_res", "delta_block_attn_res"):
    made = nnx.eval_shape(lambda name=name: build(name, output_gate="vector"))
    assert set(made.decayed_parameters) == {"gate_weight"}


def test_every_method_is_documented_where_it_is_or_where_it_is_from():
  for name in combinators.names(shipped=True):
    combinators.get(name)
  modules = [m for name, m in sys.modules.items() if name.startswith("resjax.combinators.")]
  classes = {found for m in modules for found in vars(m).values() if inspect.isclass(found)}
  methods = {
    f"{cls.__qualname__}.{name}": getattr(cls, name)
    for cls in classes
    for name, found in vars(cls).items()
    if cls.__module__.startswith("resjax.combinators.") and "_" not in (cls.__name__[0], name[0])
    if inspect.isroutine(found) or isinstance(found, property)
  }
  assert "Standard.write" in methods and "MHCLite.gates" in methods
  assert [name for name, method in methods.items() if not inspect.getdoc(method)] == []
