"""The parts of a logit add up to it, and are those of float64 NumPy on stored activations."""

import numpy as np
import pytest

from resjax import combinators
from resjax.study.analysis.attribution import attribute
from tests.helpers import alignment, decoders

PROMPT = np.array([3, 17, 5, 5, 29, 11], np.int32)
# Combinators whose weights of one write depend on the other writes.
REFUSED = {
  "highway", "deepnorm", "keel", "depth_attention", "deep_delta", "deep_cross_attention",
  "hyper_connections", "mhc", "mhc_lite", "independent_hc", "gated_residual", "gemma3n_laurel",
  "multi_gate", "muddformer", "siamese_norm",
}  # fmt: skip


def model(name="standard", style="gpt2", **changes):
  return decoders.decoder(decoders.config(style, name, **changes))


def stored(decoder):
  """Returns what a plain loop over the prompt leaves, see `alignment.states`."""
  rows = {"inputs": PROMPT[None], "segment_ids": np.ones((1, len(PROMPT)), np.int32)}
  return alignment.states(decoder, rows | {"positions": np.arange(len(PROMPT))[None]})


def frozen(decoder, h, part):
  """The final norm of a part [D] with the scale of h [D], without bias; float64."""
  if decoder.config.norm == "layernorm":
    h, part = h - h.mean(), part - part.mean()
  scale = np.sqrt(np.mean(h * h) + decoder.config.norm_eps)
  return part / scale * np.float64(decoder.final_norm.scale[...])


@pytest.mark.parametrize(
  "style", [pytest.param("gpt2"), pytest.param("llama", marks=pytest.mark.release)]
)
def test_a_plain_path_has_the_parts_of_its_equation(style):
  decoder = model(style=style)
  found, states = attribute(decoder, PROMPT, (4, 9)), stored(decoder)
  h, head = states["read"][-1][0, -1], np.float64(decoder.head)
  towards = head[4] - head[9]
  writes = [states["closed"][0][0, -1], *(out[0, -1] for out in states["branch"])]
  want = [frozen(decoder, h, write) @ towards for write in writes]
  np.testing.assert_allclose(found.writes, want, rtol=1e-4, atol=1e-5)
  logits = head @ alignment.norm(decoder, h)
  np.testing.assert_allclose(found.logit, logits[4] - logits[9], atol=1e-4)
  np.testing.assert_allclose(found.total, found.logit, atol=1e-4)
  # All heads and the bias of their projection are the part of the attention.
  bias = decoder.layers.attention.o_proj.bias
  biases = np.zeros(len(found.heads))
  if bias is not None:
    biases = [frozen(decoder, h, np.float64(b)) @ towards for b in bias[...]]
  np.testing.assert_allclose(found.heads.sum(axis=1) + biases, found.writes[1::2], atol=1e-4)


def test_a_head_has_the_part_that_its_rows_write():
  """Without the rows of one head in the last layer, the attention writes less by its part."""
  decoder, head = model(style="llama"), 2
  found, states = attribute(decoder, PROMPT, (4,)), stored(decoder)
  kernel = decoder.layers.attention.o_proj.kernel
  width = kernel.shape[1] // decoder.config.num_heads
  kernel[...] = kernel[...].at[-1, head * width : (head + 1) * width].set(0)
  without = stored(decoder)["branch"][-2]
  h, written = states["read"][-1][0, -1], (states["branch"][-2] - without)[0, -1]
  want = frozen(decoder, h, written) @ np.float64(decoder.head)[4]
  np.testing.assert_allclose(found.heads[-1, head], want, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
  "name",
  [
    *("gate", "muddformer"),  # the one has parts, the other is refused
    *(
      pytest.param(name, marks=pytest.mark.release)
      for name in combinators.names()
      if name not in ("standard", "gate", "muddformer")
    ),
  ],
)
@pytest.mark.slow
def test_parts_add_up_or_are_refused(name):
  decoder = model(name, "llama")
  if name in REFUSED:
    with pytest.raises(ValueError, match=f"not defined for residual.name='{name}'"):
      attribute(decoder, PROMPT)
    return
  found = attribute(decoder, PROMPT)
  np.testing.assert_allclose(found.total, found.logit, atol=1e-4)
  logits = decoder.logits(decoder(PROMPT[None]))[0, -1]
  assert found.targets == (int(np.argmax(logits)),)
  np.testing.assert_allclose(found.logit, logits.max(), atol=1e-4)


@pytest.mark.parametrize("name", ["mhc", "deepnorm"])
@pytest.mark.slow
def test_weights_that_depend_on_states_are_refused_before_anything_is_computed(name, monkeypatch):
  decoder = model(name, "llama")
  monkeypatch.setattr("jax.device_get", lambda _: pytest.fail("something was computed"))
  with pytest.raises(ValueError, match=f"not defined for residual.name='{name}': the weights of"):
    attribute(decoder, PROMPT)


@pytest.mark.slow
def test_sources_keep_the_weights_of_the_last_read():
  """Parts of Attention Residuals are the sources with their weights in the last read."""
  decoder = model("attn_res", "llama")
  found, states = attribute(decoder, PROMPT, (4,)), stored(decoder)
  weights = states["weights"][decoder.config.num_layers, "output"][:, 0, -1]
  sources = [states["closed"][0][0, -1], *(out[0, -1] for out in states["branch"])]
  h, towards = states["read"][-1][0, -1], np.float64(decoder.head)[4]
  np.testing.assert_allclose(
    sum(w * s for w, s in zip(weights, sources, strict=True)), h, atol=1e-5
  )
  want = [frozen(decoder, h, w * s) @ towards for w, s in zip(weights, sources, strict=True)]
  np.testing.assert_allclose(found.writes, want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_read_with_several_heads_has_no_single_weights():
  decoder = model("attn_res", "llama", options={"num_heads": 2})
  with pytest.raises(ValueError, match="its last read has no single weight for each source"):
    attribute(decoder, PROMPT)


def test_a_token_less_itself_is_refused():
  with pytest.raises(ValueError, match="token 4 less itself is no difference"):
    attribute(model(), PROMPT, (4, 4))


def test_a_model_without_finite_logits_is_refused():
  decoder = model()
  decoder.embed.embedding[...] = decoder.embed.embedding[...].at[3, 0].set(np.nan)
  with pytest.raises(ValueError, match="the logits of the model are not finite"):
    attribute(decoder, PROMPT, (4,))


def test_a_norm_behind_the_heads_leaves_them_without_parts():
  found = attribute(model(style="llama", post_norm=True), PROMPT)
  assert found.heads is None and found.no_heads == "the sum of the heads is normalised"
  np.testing.assert_allclose(found.total, found.logit, atol=1e-4)
