"""A whole sharded training step compiled for TPUs that are not there; needs the extra `tpu`."""

import pytest
from jax.experimental import topologies

from launch.bench import compile
from tests.helpers.libtpu import needs_libtpu

pytestmark = pytest.mark.usefixtures("no_tpu")


@needs_libtpu
def test_block_attention_residuals_in_two_phases_on_eight_chips():
  devices = list(topologies.get_topology_desc("v5e:2x4", "tpu").devices)
  small = compile.small_program("block_attn_res", 12, 3, devices)
  text = small.lower_train_step().compile().as_text()
  for kernel in ("block_forward", "block_backward", "merge_forward", "merge_backward", "forward"):
    assert f"depth_attention_{kernel}" in text, kernel
