"""Parameters come to life in parts: no device ever holds a whole copy."""

import jax
import pytest

from resjax.models.model_def import ModelDef
from tests.helpers import decoders, layouts


@pytest.mark.parametrize("name", ["highway", "depth_attention"])  # the largest parameters
def test_no_device_holds_more_than_its_part_while_parameters_are_made(name):
  layout = layouts.layout("fsdp", data=1, fsdp=8)
  sizes = {"num_layers": 4, "d_model": 256, "num_heads": 8, "mlp_dim": 512, "vocab_size": 2048}
  model = ModelDef(decoders.config("llama", name, **sizes, positions="learned"), layout)
  whole = sum(4 * leaf.size for leaf in model.leaves())
  lowered = model.init_program().lower(jax.random.key(0))
  memory = lowered.compile().memory_analysis()
  # Norms, and what a combinator does not split, are small.
  assert whole / 8 <= memory.output_size_in_bytes < 1.1 * whole / 8
  # Random numbers of one part, before and after they are made normal.
  assert memory.output_size_in_bytes + memory.temp_size_in_bytes < whole / 3
