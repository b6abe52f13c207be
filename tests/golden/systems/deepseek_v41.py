"""Manifold-constrained Hyper-Connections of DeepSeek-V4.1, see tests/helpers/published.py."""

from tests.golden.systems import streams
from tests.helpers import published


def compute():
  from transformers.models.deepseek_v41 import modeling_deepseek_v41 as source

  return streams.compute(
    source.DeepseekV41DecoderLayer, source.DeepseekV41HyperConnection, None, 2,
    hc_eps=1e-4, hc_sinkhorn_iters=3,
  )  # fmt: skip


if __name__ == "__main__":
  published.write("deepseek_v41", compute())
