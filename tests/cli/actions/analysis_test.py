"""An analysis of a large model takes fewer tokens by default, in enough rows."""

import dataclasses

import pytest

from resjax.cli.actions import analysis
from resjax.data.tokenizer import ByteTokenizer
from resjax.study.analysis.probing import ProbeConfig
from resjax.study.trained_model import TrainedModel
from tests.helpers import decoders

SMOLLM2 = {
  "vocab_size": 49_152, "num_layers": 30, "d_model": 576, "num_heads": 9, "num_kv_heads": 3,
  "mlp_dim": 1536, "max_positions": 8192,
}  # fmt: skip
GEMMA = SMOLLM2 | {
  "vocab_size": 262_144, "num_layers": 18, "d_model": 640, "num_heads": 4, "num_kv_heads": 1,
  "mlp_dim": 2048,
}  # fmt: skip


@pytest.mark.parametrize(
  "sizes, asked, wanted",
  [
    ({}, (0, 0), (16384, 1024)),
    (SMOLLM2, (0, 0), (9557, 512)),
    (GEMMA, (0, 0), (2895, 128)),
    (GEMMA, (0, 512), (2894, 512)),
    (GEMMA, (16384, 0), (16384, 1024)),
  ],
)
def test_sizes_by_default(sizes, asked, wanted):
  decoder = decoders.shapes(
    decoders.config(vocab_size=257) if not sizes else decoders.config(**sizes)
  )
  model = TrainedModel("m", decoder, ByteTokenizer(), 1024, pretrained=True)
  config = dataclasses.replace(ProbeConfig(), readings=("closed", "read"))
  tokens, length = analysis.sizes(config, model, *asked)
  assert (tokens, length) == (pytest.approx(wanted[0], rel=0.02), wanted[1])
