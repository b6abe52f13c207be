"""Raw states are those of a plain loop, and those of transformers for an exported model."""

import numpy as np
import pytest

from resjax.interop import huggingface
from resjax.study.analysis.alignment import DepthPosition
from resjax.study.analysis.states import states
from tests.helpers import alignment, decoders
from tests.study.analysis.measurement_test import batch, model


@pytest.mark.parametrize(
  "name", ["block_attn_res", pytest.param("standard", marks=pytest.mark.release)]
)
def test_states_are_those_of_a_loop_over_the_layers(name):
  decoder, rows = model(name), batch()
  want = alignment.states(decoder, rows)
  arrays = rows["inputs"], rows["segment_ids"], rows["positions"]
  for reading in ("closed", "read"):
    found = states(decoder, *arrays, every="site", reading=reading)
    assert next(iter(found)) == DepthPosition(-1, "embedding")
    for h, other in zip(found.values(), want[reading], strict=True):
      np.testing.assert_allclose(h, other, rtol=1e-5, atol=1e-5)
  after_sites = states(decoder, *arrays, every="site")
  for place, h in states(decoder, *arrays).items():
    np.testing.assert_allclose(h, after_sites[place], rtol=1e-6, atol=1e-6)


def test_other_readings_are_refused():
  with pytest.raises(ValueError, match="every='head' must be one of layer, site"):
    states(model("standard"), batch()["inputs"], every="head")


@pytest.mark.parametrize("style", ["gpt2", "llama"])
def test_transformers_has_the_same_hidden_states(tmp_path, style):
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  decoder = decoders.decoder(decoders.config(style, num_kv_heads=4))
  huggingface.export(decoder, tmp_path / "model")
  other = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
  tokens = np.asarray(decoders.tokens(decoder.config))
  with torch.no_grad():
    theirs = other(torch.tensor(tokens), output_hidden_states=True)
  found = list(states(decoder, tokens).values())
  assert len(found) == len(theirs.hidden_states) == decoder.config.num_layers + 1
  # transformers has the last state after the final norm.
  ours = [*found[:-1], decoder.final_norm(found[-1])]
  for h, other_h in zip(ours, theirs.hidden_states, strict=True):
    np.testing.assert_allclose(h, other_h.numpy(), rtol=1e-4, atol=1e-4)
  logits = decoder.logits(ours[-1])
  np.testing.assert_allclose(logits, theirs.logits.numpy(), rtol=1e-3, atol=1e-3)
