"""The program of launch.aot is the one of resjax train; memory, refusals, search, suggestions."""

import dataclasses
from types import SimpleNamespace

import jax
import pytest
from rich.console import Console

from configs import tiny
from launch.bench.program import read_step
from resjax.aot import compile_step, suggest_settings
from resjax.aot.memory import GIB, Arguments, DoesNotFitError, measure, refusal
from resjax.train import experiment, loop, program
from resjax.train.runs.config import MAX_SPIKE_WINDOW
from tests.data.conftest import make_texts, write_folder

ROWS = 64


def small(**changes):
  c = tiny.get_config()
  c.model.update(num_layers=4, d_model=32, num_heads=4, num_kv_heads=2, mlp_dim=64, remat="dots")
  c.data.seq_len = 16
  c.data.tokenizer.name = "byte"
  c.optim.warmup_steps = 1
  c.train.update(batch_size=ROWS, microbatches=2, steps=2)
  c.mesh.update(data=2, fsdp=4)
  with c.unlocked():
    c.update_from_flattened_dict(changes)
  return c


def built(**changes):
  return experiment.build(small(**changes), jax.devices())


def fingerprint(**changes):
  """Of the program that launch.aot compiles."""
  made = program.build(built(**changes))
  return compile_step.fingerprint(made.lower_train_step(), made.compiler_options)


class Stop(Exception):
  """Raised in place of the first step."""


@pytest.fixture
def trainer(tmp_path, monkeypatch):
  """What resjax train has built when it would begin with the first step."""
  found = []

  def stop(trainer, *_):
    found.append(trainer)
    raise Stop

  monkeypatch.setattr(loop.Trainer, "run_steps", stop)
  source = write_folder(tmp_path / "text", make_texts(300))
  places = {"workdir": str(tmp_path / "run"), "data.root": str(tmp_path / "data")}
  run = experiment.build(small(**places, **{"data.corpora.stdlib.source": str(source)}))
  with pytest.raises(Stop), (tmp_path / "output").open("w") as output:
    loop.train(run, Console(file=output))
  return found[0]


@pytest.mark.slow
def test_the_compiled_step_is_the_one_of_launch_train(trainer):
  batch = trainer.layout.put(next(trainer.batches), ROWS)
  lowered = trainer.program.train_step.lower(trainer.state, batch)
  assert fingerprint() == compile_step.fingerprint(lowered, trainer.program.compiler_options)


@pytest.mark.slow
def test_the_fingerprint_changes_with_what_changes_the_program():
  settings = [
    {},
    {"train.z_loss": 0.0},
    {"model.remat": "full"},
    {"mesh.data": 4, "mesh.fsdp": 2},
    {"optim.learning_rate": 1e-3},
    {"train.compiler_options": "auto,xla_cpu_enable_fast_math=true"},
  ]
  assert len({fingerprint(**changes) for changes in settings}) == len(settings)
  elsewhere = {"workdir": "elsewhere", "seed": 7, "train.log_every": 7}
  assert fingerprint(**elsewhere) == fingerprint(**settings[0])


def test_report_of_a_step():
  run = built()
  report = compile_step.compile_step(run)
  model = program.build(run).model
  sharded = sum(leaf.size * 4 // (4 if any(leaf.sharding.spec) else 1) for leaf in model.leaves())
  given = report.memory.arguments
  assert given.parameters == sharded
  guard = 4 * (3 + 2 * MAX_SPIKE_WINDOW)
  assert given.optimizer == pytest.approx(2 * sharded + guard, rel=0.01)  # moments, counters
  assert given.batch == (4 * ROWS * 16 + ROWS) * 4 // 8 + 4
  assert report.memory.padding == 0 and report.memory.temporaries > 0
  assert report.memory.donated == pytest.approx(3 * sharded + guard, rel=0.01)
  # A dot of each projection, forward, again and twice backward, on this device's tokens.
  matrices = model.config.num_layers * (32 * (32 + 16 + 16 + 32) + 3 * 32 * 64) + 257 * 32
  tokens = ROWS * 16 // 8
  step = read_step.read_step(report.text, run)
  assert 6 * matrices * tokens < step.matrix_flops < 1.3 * 8 * matrices * tokens
  assert report.flops.compiler < step.matrix_flops
  assert step.unknown_loops == ()
  kinds = {(row.kind, row.axes) for row in step.collectives}
  assert ("all-gather", ("fsdp",)) in kinds
  # Gradients are summed over both axes that split the batch.
  assert {axis for kind, axes in kinds if kind != "all-gather" for axis in axes} >= {"data", "fsdp"}


def test_without_cudnn_another_attention_is_named(monkeypatch):
  def lower(error):
    def fail(program):
      raise error

    monkeypatch.setattr(program.Program, "lower_train_step", fail)

  lower(RuntimeError("cuDNN not found."))
  with pytest.raises(ValueError, match=r"--config\.model\.attention=xla.*nvidia-cudnn-cu13"):
    compile_step.compile_step(built())
  lower(RuntimeError("another reason"))
  with pytest.raises(RuntimeError, match="another reason"):
    compile_step.compile_step(built())


@pytest.mark.parametrize(
  ("message", "sizes"),
  [
    (
      "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries "
      "(136.26G) exceeds available HBM (15.75G).",
      (136.26, 15.75),
    ),
    (
      "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
      "Used 2048.5M of 15.48G hbm. Exceeded hbm capacity by 5.02G.",
      (2048.5 / 1024, 15.48),
    ),
    ("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 17M of 16M vmem.", None),
    ("INTERNAL: Mosaic failed to compile TPU kernel: (2G) exceeds available HBM (1G)", None),
  ],
)
def test_refusals(message, sizes):
  found = refusal(message)
  assert found == (sizes and pytest.approx([size * GIB for size in sizes]))


def refused(parameters, required, available=16):
  given = Arguments(int(parameters * GIB), int(2 * parameters * GIB), 0)
  return DoesNotFitError(given, required * GIB, available * GIB)


def test_what_does_not_fit_names_the_shortfall():
  assert "20.00 GiB of HBM per device, 16.00 GiB are available: 4.00 GiB" in str(refused(1, 20))


def flags_of(run, error):
  return [line.split(":")[0] for line in suggest_settings.suggestions(run, error)[:-1]]


def test_suggestions_are_only_what_is_not_so_yet():
  error = refused(1, 40)
  assert flags_of(built(), error) == [
    # 37 GiB of temporaries have 13: a third of the rows, so the next divisor, 4 rows to 1
    "--config.train.microbatches=8",
    "--config.model.remat=full",
    "--config.mesh.data=1 --config.mesh.fsdp=8",
  ]
  tight = {"model.remat": "full", "mesh.data": 1, "mesh.fsdp": 8, "train.microbatches": 8}
  assert flags_of(built(**tight), error) == []  # 257 tokens do not divide over two devices
  tight["data.tokenizer.name"] = "bpe"
  assert flags_of(built(**tight), error) == [
    "--config.mesh.tensor=2 --config.mesh.fsdp=4 --config.train.microbatches=16"
  ]


def test_suggestions_for_large_logits():
  many = {"data.tokenizer.name": "bpe", "data.tokenizer.vocab_size": 2**20, "train.loss_chunk": 64}
  run = built(**many, **{"model.remat": "full", "mesh.data": 1, "mesh.fsdp": 8})
  (found,) = [
    line for line in suggest_settings.suggestions(run, refused(1, 40)) if "loss_chunk" in line
  ]
  assert found == "--config.train.loss_chunk=16: logits of 0.5 -> 0.1 GiB"


def test_parameters_that_fill_the_memory_need_more_devices():
  found = suggest_settings.suggestions(built(), refused(8, 40))
  assert found[0] == (
    "--config.mesh.data=1 --config.mesh.fsdp=8: parameters and moments 24.0 -> 12.0 GiB, and "
    "gradients with them"
  )
  assert len(found) == 2 and found[1].startswith("chips with more HBM")


SEARCHES = [
  (800, ("none", 8)),
  (400, ("none", 4)),
  (100, ("none", 1)),
  (40, ("dots", 1)),
  (10, ("full", 1)),
  (9, None),
]


@pytest.mark.parametrize(("limit", "expected"), SEARCHES)
def test_search_finds_the_cheapest_and_largest_that_fit(limit, expected):
  costs = {"none": 100, "dots": 40, "full": 10}  # of a row
  run = built()

  def attempt(changed):
    rows = changed.train.batch_size // changed.train.microbatches // run.layout.num_shards("batch")
    assert changed.train.batch_size == ROWS
    if rows * costs[changed.decoder.remat] > limit:
      raise refused(1, 40)
    return dataclasses.replace(report, cpu_seconds=rows)

  report = compile_step.Report(None, None, 0.0, 0.0, 0.0, 0.0, "", "")
  tries = list(suggest_settings.search(run, attempt))
  best = suggest_settings.best(tries)
  assert (best and (best.remat, best.rows)) == expected
  assert len(tries) <= 3 * 3  # four divisors of eight rows, bisected, under three policies
  if best:
    assert best.flags.endswith(f"microbatches={8 // best.rows}")
    assert best.outcome.cpu_seconds == best.rows


def test_parts_of_the_memory_are_the_peak_and_the_code():
  stats = SimpleNamespace(
    argument_size_in_bytes=110,
    output_size_in_bytes=70,
    alias_size_in_bytes=40,
    peak_memory_in_bytes=200,
    generated_code_size_in_bytes=5,
  )
  compiled = SimpleNamespace(memory_analysis=lambda: stats)
  found = measure(Arguments(60, 30, 10), compiled)
  assert (found.padding, found.temporaries, found.output) == (10, 60, 30)
  assert found.total == 200 + 5 and found.donated == 40
