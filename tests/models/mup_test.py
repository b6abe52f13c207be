"""muP and CompleteP's depth part: the function, the initial values, and what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax.models.config import MupConfig, ShortSWAConfig
from resjax.models.decoder import Decoder
from resjax.models.losses import cross_entropy
from resjax.testing.compare import assert_close
from resjax.train.runs import workdir
from tests.helpers import decoders
from tests.helpers.losses import text_loss

OPTIONS = {
  "gpt2": {"tied_embeddings": False, "parallel": True},
  "llama": {"post_norm": True, "short_swa": ShortSWAConfig(3, 2, zero_init=False)},
}


def _flat(model):
  return {"/".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(nnx.state(model))}


def _folded(params, config):
  """The parameters of a plain decoder with the same function, by the formulas of muP.

  softmax(q k / C) = softmax((q / √C) k / √C); a linear map or norm at the end of a branch takes the
  factor of the branch, and the last norm that of the logits.
  """
  ends = "post_norms" if config.post_norm else ("o_proj", "down_proj")
  found = {}
  for path, value in params.items():
    factor = 1.0
    if "q_proj" in path:
      width = config.d_model // 2 if "short_swa" in path else config.head_dim
      factor = width**-0.5
    if any(end in path for end in ([ends] if isinstance(ends, str) else ends)):
      factor = config.mup.base_layers / config.num_layers
    if path.startswith("final_norm"):
      factor = config.mup.base_width / config.d_model
    found[path] = np.asarray(value, np.float64) * factor
  return found


@pytest.mark.parametrize("style", decoders.STYLES)
def test_it_is_a_plain_decoder_with_other_parameters(style):
  config = decoders.config(style, mup=MupConfig(4, 2), **OPTIONS[style])
  plain = dataclasses.replace(config, mup=MupConfig())
  model, tokens = decoders.drawn(config), decoders.tokens(config)
  same = decoders.load(decoders.drawn(plain), _folded(_flat(model), config))
  logits = [jax.jit(lambda m: m.logits(m(tokens)))(one) for one in (model, same)]
  assert_close(*logits, 1e-5)
  assert np.abs(logits[0]).max() > 0.1


def test_the_loss_is_that_of_the_divided_logits():
  config = decoders.config(mup=MupConfig(base_width=4))
  model, tokens = decoders.drawn(config), decoders.tokens(config, length=13)
  ones = jnp.ones_like(tokens[:, 1:])
  positions = jnp.broadcast_to(jnp.arange(12), ones.shape)
  rows = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "segment_ids": ones}
  got = text_loss(model, rows | {"positions": positions}, 8)
  hidden, head = model(rows["inputs"]), model.embed.embedding[...] / 4
  want = cross_entropy(hidden, head, rows["targets"], ones.astype(jnp.float32), chunk_size=100)
  assert_close(got.nats, want.nats, 1e-6)


@pytest.mark.parametrize("style", decoders.STYLES)
def test_initial_values_of_a_wider_and_deeper_model(style):
  options = {"num_layers": 4, "d_model": 64, "mlp_dim": 96, "max_positions": 64}
  plain = decoders.config(style, **options, tied_embeddings=False)
  config = dataclasses.replace(plain, mup=MupConfig(base_width=16, base_layers=2))
  found, other = (_flat(Decoder(one, rngs=nnx.Rngs(0))) for one in (config, plain))
  for path, value in found.items():
    factor = 1.0
    if path.startswith("layers") and path.endswith("kernel"):
      factor = 4**-0.5  # m = 64 / 16
      if "o_proj" in path or "down_proj" in path:
        factor *= 2**0.5  # 1 / √(2 · 2) in place of 1 / √(2 · 4)
    np.testing.assert_allclose(value, factor * other[path], rtol=1e-6, err_msg=path)


def test_a_base_of_the_same_size_changes_the_scores_alone():
  config = decoders.config("gpt2", mup=MupConfig(16, 3))
  scores = decoders.config("gpt2", query_pre_attn_scalar=float(config.head_dim**2))
  tokens = decoders.tokens(config)
  found = [jax.jit(lambda m: m.logits(m(tokens)))(decoders.drawn(one)) for one in (config, scores)]
  np.testing.assert_array_equal(*found)
  assert (config.matrix_std, config.output_std) == (scores.matrix_std, scores.output_std)


def test_off_is_no_setting_of_a_run():
  plain = decoders.config()
  assert "config.model.mup" not in workdir.model_identity(plain)
  wider = workdir.model_identity(dataclasses.replace(plain, mup=MupConfig(base_width=8)))
  assert wider["config.model.mup"] == {"base_width": 8, "base_layers": 0}


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"mup": MupConfig(base_width=-1)}, "config.model.mup.base_width=-1 must be 0 or positive"),
    (
      {"mup": MupConfig(base_layers=2), "residual": "gate"},
      "config.model.mup.base_layers=2 scales the branches of 'standard', and config.model.residual."
      "name is 'gate'; set it to 0",
    ),
    (
      {"mup": MupConfig(base_width=8), "query_pre_attn_scalar": 2.0},
      "config.model.query_pre_attn_scalar=2.0 must be 0 with mup.base_width",
    ),
  ],
)
def test_refusals(changes, words):
  with pytest.raises(ValueError) as caught:
    decoders.config(**changes)
  assert words in str(caught.value) and "\n" not in str(caught.value)
