"""Independent Hyper-Connections of HY 4, see tests/helpers/published.py."""

from tests.golden.systems import streams
from tests.helpers import published


def compute():
  from transformers.models.hy_v4 import modeling_hy_v4 as source

  return streams.compute(
    source.HYV4DecoderLayer, source.HYV4HyperConnection, source.HYV4HyperHead, 3,
    hc_eps=1e-3, hc_magnitude=2.5,
  )  # fmt: skip


if __name__ == "__main__":
  published.write("hy_v4", compute())
