"""GatedNorm: a gate behind the norms before branches, for every combinator that leaves norms."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from configs import base
from resjax.combinators import BlockAttnRes, Combinator
from resjax.models.config import MupConfig, NormGateConfig, ShortSWAConfig
from resjax.models.flops import forward_flops_per_token
from resjax.testing.compare import relative_errors
from resjax.train.optim import parameter_rows
from resjax.train.optim.config import OptimizerConfig
from resjax.train.runs.workdir import model_identity
from tests.helpers import decoders

GATE = {"norm_gate": NormGateConfig(rank=3)}
PUBLISHED = {"norm_gate": NormGateConfig(rank=3, form="published")}
FORMS = pytest.mark.parametrize("gate", [GATE, PUBLISHED], ids=["neutral", "published"])


def run(decoder):
  graphdef, state = nnx.split(decoder)
  tokens = decoders.tokens(decoder.config)
  return jax.jit(lambda state, tokens: nnx.merge(graphdef, state)(tokens))(state, tokens)


@FORMS
def test_a_gate_is_that_of_its_equation(gate):
  decoder = decoders.decoder(decoders.config(parallel=True, **gate))
  layer = jax.tree.map(lambda leaf: leaf[0], decoder.layers)
  y = np.random.default_rng(0).normal(size=(2, 5, 16)).astype(np.float32)
  made = layer.norm_gates["mlp"]["x"]
  down, up = np.float64(made.down.kernel[...]), np.float64(made.up.kernel[...])
  z = np.float64(y) @ down
  share = 1 / (1 + np.exp(-(z / (1 + np.exp(-z))) @ up))
  scale = 2 if gate is GATE else 1
  np.testing.assert_allclose(made(y), scale * share * y, rtol=1e-5, atol=1e-6)
  assert not np.array_equal(made.up.kernel[...], layer.norm_gates["attention"]["x"].up.kernel[...])


@FORMS
def test_only_the_neutral_form_is_no_gate_at_init(gate):
  config = decoders.config("llama", "block_attn_res", short_swa=ShortSWAConfig(4), **gate)
  plain = dataclasses.replace(config, norm_gate=NormGateConfig())
  got, want = (run(decoders.decoder(c, random=False)) for c in (config, plain))
  assert (relative_errors(got, want)[""] < 1e-6) == (gate is GATE)


def test_it_follows_a_norm_that_is_part_of_the_read(monkeypatch):
  decoder = decoders.decoder(decoders.config("llama", "block_attn_res", **GATE))
  fused = run(decoder)
  monkeypatch.setattr(BlockAttnRes, "read_normed", Combinator.read_normed)
  apart = run(decoder)
  np.testing.assert_allclose(fused, apart, rtol=1e-4, atol=1e-5)
  for layer in ("attention", "mlp"):  # each gate has an effect
    kernel = decoder.layers.norm_gates[layer]["x"].up.kernel
    kernel[...] = 2 * kernel[...]
    assert relative_errors(run(decoder), apart)[""] > 1e-3


def test_costs_are_those_of_two_matrices_per_view():
  config, plain = (
    decoders.config("llama", "muddformer", **GATE),
    decoders.config("llama", "muddformer"),
  )
  gated, without = decoders.shapes(config), decoders.shapes(plain)
  size = 3 * (3 + 1) * 2 * 3 * 16  # layers; q, k, v and x; two matrices
  counts = [sum(leaf.size for leaf in jax.tree.leaves(nnx.state(m))) for m in (gated, without)]
  assert counts[0] - counts[1] == size
  flops = [forward_flops_per_token(m.config, m.combinator, 8) for m in (gated, without)]
  assert flops[0] - flops[1] == 2 * size


def test_muon_leaves_it_to_adamw_and_runs_without_it_have_no_such_setting():
  params = nnx.to_pure_dict(nnx.state(decoders.shapes(decoders.config(**GATE))))
  config = OptimizerConfig(**base.optim() | {"name": "muon"})
  rows = {row.path: row for row in parameter_rows(params, config)}
  gate = rows["layers/norm_gates/mlp/x/down/kernel"]
  assert (gate.update, gate.decayed) == ("adam", True)
  assert rows["layers/mlp/down_proj/kernel"].update == "muon"
  assert "config.model.norm_gate" not in model_identity(decoders.config())
  assert model_identity(decoders.config(**GATE))["config.model.norm_gate"]["rank"] == 3


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"norm_gate": NormGateConfig(17)}, r"norm_gate\.rank=17 must be in 0\.\.16"),
    ({"norm_gate": NormGateConfig(-1)}, r"norm_gate\.rank=-1 must be in 0\.\.16"),
    ({"norm_gate": NormGateConfig(1, "open")}, "norm_gate.form='open' must be neutral or publ"),
    (GATE | {"mup": MupConfig(8)}, r"norm_gate\.rank=3 must be 0 with mup\.base_width"),
    (GATE | {"residual": "deepnorm"}, "'deepnorm' there are none; set it to 0"),
    (GATE | {"residual": "gated_residual"}, "'gated_residual' there are none; set it to 0"),
  ],
)
def test_what_no_gate_can_do(changes, message):
  with pytest.raises(ValueError, match=message):
    decoders.shapes(decoders.config("llama", **changes))
