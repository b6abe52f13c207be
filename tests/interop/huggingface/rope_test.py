"""Rotary positions of config.json files, against numbers that transformers computed."""

import json

import numpy as np
import pytest

from resjax.interop import huggingface
from resjax.nn.rope_scaling import RopeScaling
from tests.golden.huggingface import rope
from tests.interop.huggingface.config_test import PUBLISHED, write

WHOLE = {"partial_rotary_factor": 1.0}
GOLDEN = json.loads(rope.FILE.read_text())


def read(folder, head_dim, **rotation):
  """The config of a GPT-NeoX, which may rotate a part of each head."""
  sizes = {"hidden_size": 2 * head_dim, "num_attention_heads": 2, "max_position_embeddings": 128}
  return huggingface.read_config(
    write(folder, PUBLISHED["EleutherAI/pythia-70m"] | sizes | rotation)
  )


@pytest.mark.parametrize("name", rope.CASES)
def test_frequencies_and_gains_are_those_of_transformers(name, tmp_path):
  head_dim, parameters = rope.CASES[name]
  (rotation,) = set(read(tmp_path, head_dim, rope_parameters=WHOLE | parameters).layer_ropes)
  got = rotation.frequencies(head_dim, GOLDEN[name]["length"] > rotation.short_length)
  assert got.dtype == np.float32
  # Powers may differ by their last bit, which the differences of llama3 enlarge.
  np.testing.assert_allclose(got, GOLDEN[name]["frequencies"], rtol=1e-6)
  assert rotation.scaling.gain() == pytest.approx(GOLDEN[name]["gain"], rel=1e-12)


@pytest.mark.parametrize("name", rope.CASES)
def test_both_spellings_of_a_scaling_and_back(name, tmp_path):
  head_dim, parameters = rope.CASES[name]
  parameters = WHOLE | parameters
  new = read(tmp_path, head_dim, rope_parameters=parameters)
  old = {key: value for key, value in parameters.items() if key != "rope_theta"}
  old["type"] = old.pop("rope_type")
  base = parameters["rope_theta"]
  assert new == read(
    tmp_path,
    head_dim,
    rope_scaling=old | {"finetuned": True},
    rotary_emb_base=base,
    rope_theta=base,
  )
  if new.rope_scaling.kind == "longrope":  # which this family cannot use with a cache
    with pytest.raises(ValueError, match=r"config\.model\.rope_scaling="):
      huggingface.find_family(new)
    return
  family, settings = huggingface.find_family(new)
  assert family.model_type == "gpt_neox"
  assert huggingface.read_config(write(tmp_path, settings)) == new


@pytest.mark.parametrize(
  ("given", "want"),
  [
    ({"type": "yarn", "factor": None}, RopeScaling("yarn", 1.0, original_max_positions=128)),
    (
      {"type": "yarn", "original_max_position_embeddings": 32},
      RopeScaling("yarn", 4.0, original_max_positions=32),
    ),
    (
      {"type": "longrope", "short_factor": [1], "long_factor": [2.5]},
      RopeScaling(
        "longrope", 1.0, original_max_positions=128, short_factors=(1.0,), long_factors=(2.5,)
      ),
    ),
  ],
)
def test_what_a_file_leaves_open(given, want, tmp_path):
  assert read(tmp_path, 8, rope_scaling=given).rope_scaling == want


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"type": "dynamic", "factor": 2.0}, "'dynamic' is not supported; allowed: default, linear, "),
    ({"type": "linear", "factor": 2.0, "mscale": 1.0}, "mscale=1.0 is not .*allowed: factor with"),
    ({"type": "longrope", "long_factor": [1.0]}, "short_factor=None is not supported; allowed: "),
    (
      {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0, 2.0]},
      r"short_factors=\(1.0, 2.0\) must be 1 positive numbers",
    ),
    ({"type": "yarn", "factor": 2.0, "sliding_attention": {}}, "rope_scaling.sliding_attention"),
    ({"type": "yarn", "factor": 2.0, "truncate": 1}, "truncate is 1: expected bool"),
  ],
)
def test_refusals(given, message, tmp_path):
  with pytest.raises(ValueError, match=message) as caught:
    read(tmp_path, 8, rope_scaling=given)
  assert "\n" not in str(caught.value)
