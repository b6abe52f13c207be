"""Options of the compilers: the setting's form, what it gives, and what libtpu makes of it."""

import jax
import pytest

from configs import llama_1p3b
from launch.bench.program import hlo
from launch.bench.program.collectives import asynchronous_places, collectives
from resjax.aot import absent_devices, program_text
from resjax.base.hardware import compiler_options
from resjax.base.hardware.chips import TPU_CHIPS
from resjax.train import experiment, program
from resjax.train.compilation import compile_lowered
from tests.helpers.libtpu import needs_libtpu

ASYNC = "xla_enable_async_all_gather"
OFFLOAD = "xla_tpu_enable_sparse_core_collective_offload_"
OFFLOADS = [OFFLOAD + kind for kind in ("all_gather", "2d_all_gather", "reduce_scatter")]
OF_A_3D_TORUS = [f"{OFFLOAD}3d_all_gather", f"{OFFLOAD}nd_reduce_scatter"]
WINDOWED = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}
FUSE = "xla_tpu_enable_async_collective_fusion_fuse_all_gather"  # libtpu 0.0.50: "SDC"
RELEASE = pytest.mark.release


@pytest.mark.parametrize(
  ("setting", "expected"),
  [
    ("auto", {ASYNC: "true"}),
    ("none", {}),
    (f"auto,-{ASYNC},xla_a=1,xla_b=x=y", {"xla_a": "1", "xla_b": "x=y"}),
    (f"auto,{ASYNC}=false", {ASYNC: "false"}),
    (f"none,{FUSE}=true", {FUSE: "true"}),
  ],
)
def test_a_setting_adds_and_removes(setting, expected):
  assert compiler_options.resolve(setting, "tpu", "TPU v4") == expected


def test_chips_with_sparse_cores_exchange_there():
  of_2d = dict.fromkeys(OFFLOADS, "true") | WINDOWED
  of_3d = of_2d | dict.fromkeys(OF_A_3D_TORUS, "true")
  expected = {"TPU v6 lite": of_2d, "TPU v5p": of_3d, "TPU7x": WINDOWED}
  assert {kind: compiler_options.resolve("auto", "tpu", kind) for kind in expected} == expected


def test_no_chip_takes_what_newer_compilers_call_unsafe():
  assert FUSE not in {option.name for option in compiler_options.OPTIONS}


def test_other_platforms_and_unknown_chips_take_none():
  for platform, kind in (("cpu", "cpu"), ("gpu", "NVIDIA H100 80GB HBM3"), ("tpu", "TPU v99")):
    assert compiler_options.resolve("auto", platform, kind) == {}
    assert compiler_options.resolve("auto,xla_a=1", platform, kind) == {"xla_a": "1"}


@pytest.mark.parametrize(
  ("setting", "message"),
  [
    ("", "begin with auto"),
    ("xla_a=1", "begin with auto"),
    ("auto,xla_a", "'xla_a'; begin with auto"),
    ("auto,xla_a=", "'xla_a='; begin with auto"),
    ("auto,=1", "'=1'; begin with auto"),
    ("none,", "''; begin with auto"),
    (f"auto,-{FUSE}=true", f"'-{FUSE}=true'; begin with auto"),
    ("auto,-xla_a", "xla_a is not among the options of any chip"),
  ],
)
def test_a_setting_of_another_form_is_refused(setting, message):
  with pytest.raises(ValueError, match=r"config\.train\.compiler_options=") as raised:
    compiler_options.check(setting)
  assert message in str(raised.value) and "\n" not in str(raised.value)


def test_every_option_names_its_chips_and_its_evidence():
  for option in compiler_options.OPTIONS:
    assert option.chips and set(option.chips) <= set(TPU_CHIPS), option
    assert option.evidence.endswith("."), option


@pytest.mark.parametrize("option", ["xla_no_such=1", "xla_cpu_enable_fast_math=perhaps"])
def test_an_option_that_the_compiler_refuses_is_one_line(option):
  name, _, value = option.partition("=")
  lowered = jax.jit(lambda x: x, compiler_options={name: value}).lower(1.0)
  with pytest.raises(ValueError, match=rf"^config\.train\.compiler_options: .*{name}") as raised:
    compile_lowered(lowered)
  assert "\n" not in str(raised.value)


def test_other_errors_of_the_compiler_are_not_taken_for_options(monkeypatch):
  def fail():
    raise jax.errors.JaxRuntimeError("INTERNAL: something else")

  lowered = jax.jit(lambda x: x).lower(1.0)
  monkeypatch.setattr(lowered, "compile", fail)
  with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
    compile_lowered(lowered)


def step(topology, setting, batch_size=8, seq_len=256):
  """The lowered training step of a small decoder on all chips, and its run."""
  c = llama_1p3b.get_config("standard")
  c.model.update(num_layers=2, d_model=512, num_heads=4, num_kv_heads=4, mlp_dim=1408)
  c.data.seq_len = seq_len
  c.data.tokenizer.vocab_size = 1024
  c.train.update(batch_size=batch_size, compiler_options=setting)
  c.mesh.update(data=1, fsdp=-1)
  run = experiment.build(c, absent_devices.describe(topology).devices)
  return run, program.build(run).lower_train_step()


def asynchronous(topology, setting, *kinds, **sizes):
  """How many exchanges of the small decoder are asynchronous, and how many there are, by kind."""
  run, lowered = step(topology, setting, **sizes)
  module = hlo.parse(program_text(compile_lowered(lowered)))
  rows = collectives(module, run.layout.mesh)
  return [asynchronous_places(rows, kind) for kind in kinds]


@needs_libtpu
@pytest.mark.usefixtures("no_tpu")
@pytest.mark.parametrize(
  "topology",
  [
    pytest.param(topology, marks=() if "v5p" in topology else RELEASE)
    for topology in ("v4:2x2x1", "v5p:2x2x1", "v6e:2x2")
  ],
)
def test_weights_are_gathered_while_others_are_used(topology):
  ((none, count),) = asynchronous(topology, "none", "all-gather")
  assert none == 0 and count >= 16  # seven matrices of a layer in each of two loops, two tables
  assert asynchronous(topology, "auto", "all-gather") == [(count, count)]


@needs_libtpu
@pytest.mark.usefixtures("no_tpu")
def test_gradients_of_v5p_are_scattered_while_others_are_computed():
  ((none, _),) = asynchronous("v5p:2x2x1", "none", "reduce-scatter")
  ((found, count),) = asynchronous("v5p:2x2x1", "auto", "reduce-scatter")
  assert none == 0 and found == count >= 7


@needs_libtpu
@pytest.mark.usefixtures("no_tpu")
@pytest.mark.parametrize(
  ("topology", "rows"),
  [("v5p:2x2x4", 64), ("v6e:2x2", 16), pytest.param("tpu7x:2x2x4", 128, marks=RELEASE)],
)
def test_weights_are_multiplied_whole(topology, rows):
  """With 8192 tokens per chip permutes would bring a part of a weight at a time: 53 on v6e."""
  sizes = {"batch_size": rows, "seq_len": 2048}
  kinds = "collective-permute", "all-gather", "reduce-scatter"
  permutes, gathers, scatters = asynchronous(topology, "auto", *kinds, **sizes)
  assert permutes == (0, 0)
  assert gathers[0] == gathers[1] >= 16
  assert scatters[0] == scatters[1] >= 7


@needs_libtpu
@pytest.mark.slow
@pytest.mark.usefixtures("no_tpu")
@pytest.mark.parametrize("name", OFFLOADS[:2])
def test_one_option_of_gathers_alone_does_nothing(name):
  ((found, _),) = asynchronous("v5p:2x2x1", f"auto,-{name}", "all-gather")
  assert found == 0


@needs_libtpu
@pytest.mark.usefixtures("no_tpu")
def test_libtpu_names_the_option_that_it_does_not_know():
  _, lowered = step("v5e:2x2", "auto,xla_tpu_no_such=1")
  with pytest.raises(ValueError, match=r"^config\.train\.compiler_options: .*xla_tpu_no_such"):
    compile_lowered(lowered)
