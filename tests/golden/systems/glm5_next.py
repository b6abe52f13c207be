"""Manifold-constrained Hyper-Connections of GLM-5.3, see tests/helpers/published.py."""

from tests.golden.systems import streams
from tests.helpers import published


def compute():
  from transformers.models.glm5_next import modeling_glm5_next as source

  return streams.compute(
    source.Glm5NextTextDecoderLayer, source.Glm5NextTextHyperConnection,
    source.Glm5NextTextHyperHead, 3, hc_eps=1e-6, hc_sinkhorn_iters=20,
  )  # fmt: skip


if __name__ == "__main__":
  published.write("glm5_next", compute())
