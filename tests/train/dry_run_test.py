"""--dry_run tells what a run would do, and does nothing."""

import io
from types import SimpleNamespace
from typing import NamedTuple

import jax
from rich.console import Console

from configs import tiny
from resjax.train import experiment, program
from resjax.train.dry_run import bytes_per_device, dry_run, rows_per_process
from resjax.train.state import init_state
from tests.helpers import layouts
from tests.helpers.runs import command, finish


class Device(NamedTuple):
  """What is read of a device."""

  number: int
  process_index: int


def run_of(tmp_path, **mesh):
  c = tiny.get_config()
  c.workdir, c.data.root = str(tmp_path / "run"), str(tmp_path / "data")
  c.data.corpora.stdlib.source = str(tmp_path / "no-such-corpus")
  c.mesh.update(**mesh)
  return experiment.build(c)


def test_it_tells_everything_and_writes_nothing(tmp_path):
  out = io.StringIO()
  dry_run(run_of(tmp_path, fsdp=2, tensor=2), Console(file=out, width=160))
  text = out.getvalue()
  assert list(tmp_path.iterdir()) == []
  for line in (
    "config.train.batch_size = 8",
    "config.sharding.fsdp_tp.embed_param = ('fsdp',)",
    "config.model.residual.block_attn_res.layers_per_block = 2",
    "8 devices: data 2 × fsdp 2 × expert 1 × tensor 2 × sequence 1",
    "vocabulary 4,096 (config.data.tokenizer.vocab_size; a small corpus gives fewer",
    "process 0: rows 0..7 of the first 8",
    f"config.data.corpora.stdlib.source={tmp_path}/no-such-corpus: WARNING: training would fail",
  ):
    assert line in text, line
  assert "config.sharding.dp" not in text and "config.model.residual.mhc" not in text
  row = next(line for line in text.splitlines() if "layers/mlp/up_proj/kernel" in line)
  assert row.split()[-3:] == ["-,", "fsdp,", "tensor"]


def test_no_number_is_cut_on_a_narrow_terminal(tmp_path):
  c = tiny.get_config()
  c.model.residual.name = "x0_residual"
  c.optim.combinator_lr_multipliers = ("stream_scale=0.01",)
  c.workdir = str(tmp_path / "run")
  out = io.StringIO()
  dry_run(experiment.build(c), Console(file=out, width=80))
  parameters = out.getvalue().partition("lr ×")[2].partition("bytes per device")[0]
  assert "  0.01 " in parameters and "  524,288  adam    yes    1 " in parameters
  assert "…" not in parameters


def test_bytes_are_those_that_the_devices_hold(tmp_path):
  run = run_of(tmp_path, fsdp=2, tensor=2).with_vocab_size(64)
  planned = program.build(run)
  state = init_state(planned.model, planned.optimizer, 0)
  for abstract, real in ((planned.state.params, state.params), (planned.state, state)):
    shards = [leaf.addressable_shards for leaf in jax.tree.leaves(real)]
    held = [sum(leaf[d].data.nbytes for leaf in shards) for d in range(8)]
    assert held == [bytes_per_device(abstract)] * 8


def test_rows_of_processes():
  # Two processes of two devices; a device of each holds the same rows, over other tokens.
  places = [(0, 0, 2), (0, 2, 4), (1, 4, 6), (1, 4, 6), (1, 0, 2)]
  index = {
    Device(number, process): (slice(first, end), slice(None))
    for number, (process, first, end) in enumerate(places)
  }
  sharding = SimpleNamespace(devices_indices_map=lambda shape: index)
  rows = SimpleNamespace(shape=(8, 4), sharding=sharding)
  assert rows_per_process(rows) == {0: [(0, 4)], 1: [(0, 2), (4, 6)]}
  layout = layouts.layout(data=4, fsdp=2)
  rows = jax.ShapeDtypeStruct((8, 4), "int32", sharding=layout.sharding("batch"))
  assert rows_per_process(rows) == {0: [(0, 8)]}


def test_the_command(tmp_path):
  output = finish(command(tmp_path, tmp_path / "run", "--dry_run"))
  assert "vocabulary 257" in output and "process 0: rows 0..7 of the first 8" in output
  assert list(tmp_path.iterdir()) == []
