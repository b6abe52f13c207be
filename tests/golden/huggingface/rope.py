"""Frequencies and gains of rotary positions, as transformers computes them.

python -m tests.golden.huggingface.rope       (needs torch and transformers; writes rope.json)
"""

import json
import pathlib

FILE = pathlib.Path(__file__).parent / "rope.json"

_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
_LONG = {
  "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.1, 1.3, 1.6],
  "long_factor": [1.5, 3.0, 9.0, 20.0], "original_max_position_embeddings": 32, "factor": 4.0,
}  # fmt: skip
# The width of a head, and the parameters of the rotation.
CASES = {
  "llama3": (32, {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
  }),
  "yarn": (32, _YARN | {"original_max_position_embeddings": 256}),
  "yarn_options": (24, _YARN | {
    "rope_theta": 5e5, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False,
    "attention_factor": 1.25, "original_max_position_embeddings": 512,
    "partial_rotary_factor": 0.5,
  }),
  "yarn_mscale": (8, _YARN | {
    "mscale": 0.7, "mscale_all_dim": 1.3, "original_max_position_embeddings": 64,
  }),
  "yarn_narrow": (8, _YARN | {"factor": 1.0, "original_max_position_embeddings": 8}),
  "longrope_short": (8, _LONG),
  "longrope_long": (8, _LONG),
  "longrope_gain": (12, _LONG | {"attention_factor": 1.5, "partial_rotary_factor": 0.67}),
}  # fmt: skip


def found() -> dict[str, dict]:
  """Returns what transformers computes for each case."""
  import transformers
  from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

  results = {}
  for name, (head_dim, parameters) in CASES.items():
    settings = transformers.LlamaConfig(
      hidden_size=2 * head_dim, num_attention_heads=2, num_key_value_heads=2, head_dim=head_dim,
      max_position_embeddings=4 * parameters["original_max_position_embeddings"],
      rope_parameters=dict(parameters),
    )  # fmt: skip
    compute = ROPE_INIT_FUNCTIONS[parameters["rope_type"]]
    length = 33 if name == "longrope_long" else 32
    frequencies, gain = compute(settings, "cpu", seq_len=length)
    results[name] = {"frequencies": frequencies.tolist(), "gain": float(gain), "length": length}
  return results


if __name__ == "__main__":
  FILE.write_text(json.dumps(found(), indent=1) + "\n")
