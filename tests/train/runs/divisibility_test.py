"""All sizes that do not divide are told at once, with the numbers, before data are built."""

import pytest

from configs import tiny
from resjax.train import experiment


def config(name="fsdp_tp", **changes):
  c = tiny.get_config()
  c.sharding.name = name
  c.update_from_flattened_dict({key.replace("__", "."): value for key, value in changes.items()})
  return c


def refusal(c):
  with pytest.raises(ValueError) as raised:
    experiment.build(c)
  message = str(raised.value)
  assert "\n" not in message
  return message.split("; ")


def test_all_at_once():
  lines = refusal(
    config(
      "long_context",
      mesh__data=1, mesh__tensor=4, mesh__sequence=2,
      train__batch_size=6, train__microbatches=2,
      data__seq_len=33, data__tokenizer__name="byte",
      model__num_kv_heads=2, model__mlp_dim=6, model__d_model=4, model__num_heads=2,
      model__short_swa__window=2, model__short_swa__num_heads=1,
    )
  )  # fmt: skip
  lines = [line for line in lines if not line.startswith("change ")]
  sizes = [line.split(" is not divisible by ")[0] for line in lines]
  assert sizes == [
    "config.data.seq_len=33",
    "config.model.num_heads=2",
    "config.model.num_kv_heads=2",
    "config.model.short_swa.num_heads=1",
    "V=257 of embed/embedding",
    "F=6 of layers/mlp/down_proj/kernel and 2 more",
  ]
  assert lines[0].endswith("by 2, that is config.mesh.sequence=2")
  assert lines[1].endswith("by 4, that is config.mesh.tensor=4")


def test_rows_divide_over_devices_and_microbatches():
  lines = refusal(config(mesh__fsdp=2, train__batch_size=24, train__microbatches=2))
  assert lines == [
    "config.train.batch_size=24 is not divisible by 16, that is config.mesh.data=4 × "
    "config.mesh.fsdp=2 × config.train.microbatches=2"
  ]


def test_a_vocabulary_that_does_not_divide_has_two_ways_out():
  changes = {"mesh__tensor": 2, "data__tokenizer__vocab_size": 50257}
  line = "; ".join(refusal(config(**changes)))
  assert "V=50257 of embed/embedding is not divisible by 2, that is config.mesh.tensor=2" in line
  assert "config.data.tokenizer.vocab_size" in line and "vocab=()" in line
  experiment.build(config(**changes, sharding__fsdp_tp__vocab=()))
  experiment.build(config(**changes | {"data__tokenizer__vocab_size": 50258}))


def test_devices_for_experts_need_experts():
  changes = {"mesh__data": 2, "mesh__expert": 4}
  assert refusal(config(**changes)) == [
    "config.mesh.expert=4 splits experts, and config.model.moe.num_experts=0",
    "set it to 1 and config.mesh.data to 8",
  ]
  assert refusal(config(**changes, model__moe__num_experts=6))[0].startswith(
    "E=6 of layers/moe/down_proj/kernel and 2 more is not divisible by 4, that is config.mesh.exp"
  )
  experiment.build(config(**changes, model__moe__num_experts=8))
