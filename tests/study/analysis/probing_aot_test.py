"""The memory of the alignment step, compiled for absent TPUs; needs the extra `tpu`."""

import pytest

from configs import llama_1p3b
from resjax.aot import absent_devices
from resjax.train import experiment, program
from tests.helpers.libtpu import needs_libtpu
from tests.helpers.memory import total_bytes

pytestmark = pytest.mark.usefixtures("no_tpu")
L, V, DEVICES = 24, 50257, 8


@needs_libtpu
@pytest.mark.parametrize(
  "name", [pytest.param("standard", marks=pytest.mark.release), "block_attn_res"]
)
def test_probes_take_at_most_two_arrays_of_logits_more_than_an_evaluation(name):
  """With parameters split over 8 chips and a row each, head and logits take most of the memory."""
  c = llama_1p3b.get_config(name)
  c.model.update(num_layers=L, d_model=1024, num_heads=16, num_kv_heads=16, mlp_dim=4096)
  c.data.seq_len = 1024
  c.train.update(batch_size=DEVICES, microbatches=1, alignment_rows=DEVICES)
  c.mesh.update(data=1, fsdp=DEVICES)
  run = experiment.build(c, absent_devices.describe("v5e:2x4").devices)
  programs = program.build(run.with_vocab_size(V))
  plain, probed = programs.lower_eval_step(), programs.lower_alignment_step()
  logits = 4 * c.data.seq_len * V  # bytes in float32
  assert total_bytes(probed.compile()) <= total_bytes(plain.compile()) + 2 * logits  # it is 1.7
