"""The harness of depth attention: byte counts, records, and what it says of what is missing.

Byte counts are added up here by hand, array by array.
"""

import dataclasses
import json
import sys
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from launch.bench.kernels import __main__ as command
from launch.bench.kernels import (
  arg_specs,
  cases,
  network_bytes,
  networks,
  reads,
  suites,
  timing,
  torch_arms,
  walks,
)
from launch.bench.kernels.arg_specs import NetworkShape, ReadShape
from resjax.testing.compare import assert_close
from tests.helpers import reference


def test_bytes_of_one_read():
  assert arg_specs.pass_bytes(8192, 2048) == 33_554_432
  assert arg_specs.pass_bytes(3, 5, "float32") == 60
  assert arg_specs.read_forward(8) == 9  # 8 sources in, 1 output out
  assert arg_specs.read_backward(8) == 17  # 8 sources, 1 cotangent in, 8 cotangents out
  assert arg_specs.residual_forward() == arg_specs.residual_backward() == 4


def test_bytes_of_a_network_are_those_counted_by_hand():
  shape = NetworkShape(5, 3, 8, 128)  # blocks of 3 and 2 sublayers, then the output
  forward = [
    1 + 1,  # x in, output out
    2 + 1,  # x, running sum, which is the first output
    2 + 1 + 1 + 1,  # x, running sum, addend in; sum, output out
    2 + 1 + 1 + 1,  # the second block begins: x, last sum, addend in; sum, output out
    3 + 1,  # x, first block, running sum
    3 + 1 + 1 + 1,  # the output reads x, first block, last sum with its addend
  ]
  assert arg_specs.direct_forward(shape) == sum(forward)
  assert arg_specs.direct_backward(shape) == sum(3 * n + 1 for n in (1, 2, 2, 2, 3, 3))
  phases = [
    1 + 3,  # x in, 3 outputs out
    2 + 1.25,  # first merge: phase-1 output, running sum in; output out, and 4 bits more of it
    3 + 2.25,  # second merge: the same and an addend in; sum, output out
    2 + 2 + 2,  # x, first block in; 2 outputs out; the addend in and its sum out
    2 + 1.25,
    3 + 1 + 2,
  ]
  assert arg_specs.two_phase_forward(shape) == sum(phases)
  backward = [3 * 1 + 3 + 1, 2 * 6.25, 3 * 2 + 2 + 1, 6.25, 3 * 3 + 1]
  assert arg_specs.two_phase_backward(shape) == sum(backward)


def test_bytes_of_the_large_network_per_sublayer():
  shape = dataclasses.replace(arg_specs.BYTES_NETWORK, final_read=False)
  assert shape.completed() == [c for c in range(1, 9) for _ in range(8)]
  counts = {
    arg_specs.direct_forward: 8.1,
    arg_specs.direct_backward: 17.1,
    arg_specs.two_phase_forward: 6.1,
    arg_specs.two_phase_backward: 8.3,
  }
  for count, passes in counts.items():
    assert count(shape) / shape.num_sublayers == pytest.approx(passes, abs=0.05), count.__name__


def test_a_block_reads_the_sources_of_its_shape():
  assert arg_specs.block_of(ReadShape(16, 128, 5)).completed() == [4] * 8
  assert arg_specs.block_of(ReadShape(16, 128, 1)).completed() == [1] * 8


@pytest.mark.parametrize("text", ["8192x2048", "0x128x2", "8x128x2x3", "8x128xN", ""])
def test_a_shape_that_is_none_is_refused(text):
  with pytest.raises(ValueError, match="TxDxN"):
    arg_specs.parse_read(text)


def test_the_stacked_form_is_depth_attention():
  query, gain, sources = reads.inputs(ReadShape(5, 128, 4))
  query, sources = query * 10, [source.astype(jnp.float32) for source in sources]
  want = reference.depth_read(*(np.asarray(x, np.float64) for x in (query, gain)),
                              [np.asarray(x, np.float64) for x in sources], reads.EPS)  # fmt: skip
  assert_close(reads.stack_read(query, gain, tuple(sources)), want, 2e-6)


def test_samples_go_there_and_back_and_are_summed_up():
  turns, now = [], iter(range(100))
  arms = {name: lambda name=name: turns.append(name) or float(next(now)) for name in "ab"}
  assert timing.interleaved(arms, 4) == {"a": [0, 3, 4, 7], "b": [1, 2, 5, 6]}
  assert turns == list("abbaabba")
  assert timing.summary([3e-3, 1e-3, 2e-3]) == {
    "median_ms": 2.0, "quartiles_ms": [1.5, 2.5], "range_ms": [1.0, 3.0], "samples": 3
  }  # fmt: skip


def test_a_run_on_the_clock_and_on_all_cores(monkeypatch):
  ran, cores, now = [], [], {"clock": 0.0, "cores": 0.0}
  monkeypatch.setattr(timing.time, "perf_counter", lambda: now["clock"])
  monkeypatch.setattr(timing.time, "process_time", lambda: now["cores"])

  def run():
    ran.append(None)
    now["clock"], now["cores"] = now["clock"] + 3.0, now["cores"] + 5.0

  sample = timing.wall(run, 4, cores)
  assert (len(ran), cores) == (1, [])
  assert (sample(), len(ran), cores) == (3.0, 5, [5.0])


def test_the_loop_runs_as_often_as_it_says(monkeypatch):
  ran = []
  monkeypatch.setattr(timing, "MIN_LOOP_SECONDS", 0.0)

  def fn(x):
    jax.debug.callback(lambda: ran.append(1))
    return x + 1

  sample = timing.samplers(cases.CompiledCase.of(fn, jnp.ones(3)))["loop"]()
  jax.effects_barrier()
  ran.clear()
  sample()
  jax.effects_barrier()
  assert len(ran) == 1


@pytest.mark.slow
def test_all_forms_of_a_network_are_one_function():
  shape = NetworkShape(6, 2, 3, 128)  # its last block begins with enough sources for two phases
  queries, gains, sources = networks.inputs(shape)
  inputs = queries * 4, gains, jax.tree.map(lambda x: x.astype(jnp.float32), sources)
  forms = walks.forms(shape)

  def grad(name):
    def loss(*inputs):
      return jnp.mean(jnp.sin(forms[name](*inputs)))

    return jax.jit(jax.grad(loss, (0, 1, 2)))(*inputs)

  want = grad("xla_stack")
  for name in ("xla_no_stack", "two_phase"):
    assert_close(grad(name), want, 1e-4)  # of float32, through 7 reads


def report(out, *flags):
  """Runs the command with small programs; returns what it writes."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(timing, "MIN_LOOP_SECONDS", 1e-3)
    command.main(["--out", str(out), "--repeats=2", "--deadline=0", *flags])
  assert (out / "bench.png").read_bytes().startswith(b"\x89PNG")
  found = json.loads((out / "bench.json").read_text())
  assert found["platform"] == "cpu" and found["device"] and found["jax"] == jax.__version__
  return found["records"]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
  return report(tmp_path_factory.mktemp("bench"), "--suites=read", "--shapes=8x128x2")


@pytest.mark.slow
def test_every_arm_of_a_read_has_a_record(records):
  names = {"copy", "xla_stack", "xla_no_stack", "direct", "residual_norm", *torch_arms.READ_ARMS}
  for direction in ("forward", "backward"):
    assert {r["arm"] for r in records if r["direction"] == direction} == names
  assert len(records) == 2 * len(names)


@pytest.mark.release
def test_every_arm_of_a_network_has_a_record(tmp_path):
  records = report(tmp_path, "--suites=block,network", "--shapes=8x128x2", "--networks=4x2x8x128")
  own = {"copy", "xla_stack", "xla_no_stack", "direct", "two_phase", "residual_norm"}
  for suite, names in (("block", own), ("network", own | {"flash_attn_res"})):
    for direction in ("forward", "both"):
      group = [r for r in records if (r["suite"], r["direction"]) == (suite, direction)]
      assert {record["arm"] for record in group} == names
      _check(group)


@pytest.mark.release
def test_every_arm_of_streams_has_a_record(tmp_path):
  records = report(tmp_path, "--suites=streams", "--shapes=8x128x2")
  for direction, least in (("forward", 6), ("backward", 9)):
    group = {r["arm"]: r for r in records if r["direction"] == direction}
    assert group.keys() == {"copy", "xla_no_stack", "direct", "residual_norm"}
    assert all(record["status"] == "ok" for record in group.values())
    assert group["direct"]["passes"] == least and group["direct"]["relative_l2_error"] < 1e-2


def test_shares_are_those_of_the_copy(records):
  for direction in ("forward", "backward"):
    _check([record for record in records if record["direction"] == direction])


def _check(group):
  copy, *others = [record for record in group if record["status"] == "ok"]
  assert copy["arm"] == "copy" and copy["share_of_copy"] == 1 and len(others) >= 4
  for record in others:
    share = record["bytes"] / record["median_ms"] / (copy["bytes"] / copy["median_ms"])
    assert record["share_of_copy"] == pytest.approx(share)
    assert record["bytes"] == record["passes"] * 8 * 128 * 2
    assert record["samples"] == 2 and record["peak_bytes"] > record["bytes"] / 8
    if record["arm"] != "residual_norm":
      assert record["relative_l2_error"] < 1e-2, record  # bf16, sums in another order


def test_a_published_kernel_that_is_missing_is_named(records, monkeypatch):
  monkeypatch.setitem(sys.modules, "torch", None)
  for arm in (*torch_arms.READ_ARMS.values(), *torch_arms.NETWORK_ARMS.values()):
    obstacle = arm.obstacle(ReadShape(8, 128, 2))
    assert arm.package in obstacle and "bench" in obstacle
  statuses = {r["arm"]: r["status"] for r in records if r["status"] != "ok"}
  assert set(statuses) <= set(torch_arms.READ_ARMS)
  assert all("not installed" in s or "no NVIDIA GPU" in s for s in statuses.values())


def test_an_arm_that_fails_does_not_end_the_others(monkeypatch):
  def broken(shape):
    arms = reads.arms(shape)
    fails = dataclasses.replace(arms["xla_stack"], forward=lambda *inputs: 1 / 0)
    return {"xla_stack": fails, "xla_no_stack": arms["xla_no_stack"]}

  suite = suites.Suite(reads.NAMES, broken, {}, ("forward",))
  monkeypatch.setitem(suites.SUITES, "read", suite)
  (records,) = suites.run("read", ReadShape(8, 128, 2), ["xla_stack", "xla_no_stack"], 1)
  status = {record["arm"]: record["status"] for record in records}
  assert status.pop("xla_stack").startswith("ZeroDivisionError")
  assert status == {"copy": "ok", "xla_no_stack": "ok"}


WRITES = """
import json, os, sys
records = [
  {"suite": "read", "shape": "8x128x2", "arm": arm, "direction": "forward", "status": "ok"}
  for arm in ("copy", sys.argv[2])
]
json.dump({"records": records}, open(sys.argv[1] + "/bench.json", "w"))
sys.argv[2] != "direct" or os.abort()
sys.argv[2] != "residual_norm" or __import__("time").sleep(600)
"""


def test_an_arm_that_aborts_or_hangs_costs_no_other(tmp_path, monkeypatch, capsys):
  def stub(suite, shape, name, repeats, out):
    return [sys.executable, "-c", WRITES, str(out), name]

  monkeypatch.setattr(command, "_command", stub)
  flags = ["--suites=read", "--shapes=8x128x2", "--arms=xla_no_stack,direct,residual_norm,liger"]
  command.main([f"--out={tmp_path}", "--deadline=3", *flags])
  records = json.loads((tmp_path / "bench.json").read_text())["records"]
  status = {(r["arm"], r["direction"]): r["status"] for r in records if r["arm"] != "copy"}
  # What an arm has written before it ended stays.
  assert [status[name, "forward"] for name in ("xla_no_stack", "direct", "liger")] == ["ok"] * 3
  assert status["direct", "backward"] == "killed by SIGABRT"
  assert status["residual_norm", "backward"] == "over its deadline of 3 s"
  assert status["liger", "backward"] == "its process gave no result"
  assert "killed by SIGABRT" in capsys.readouterr().out


def test_a_process_of_its_own_is_asked_for_one_arm_at_one_shape():
  shape = ReadShape(16, 128, 5)
  for suite, one, word in (
    ("read", shape, "--shapes=16x128x5"),
    ("block", arg_specs.block_of(shape), "--shapes=16x128x5"),
    ("network", arg_specs.SMALL_NETWORK, "--networks=4x2x64x128"),
  ):
    words = command._command(suite, one, "direct", 7, Path("out"))
    flags = command._parse(words[words.index("kernels") + 1 :])
    assert word in words and (flags.suites, flags.arms) == ([suite], ["direct"])
    assert (flags.deadline, flags.repeats, flags.out) == (0, 7, Path("out"))


@pytest.mark.release
def test_arms_in_processes_of_their_own_give_the_records_of_one_process(tmp_path):
  flags = ["--suites=read", "--shapes=8x128x2", "--arms=xla_no_stack,liger"]
  records = report(tmp_path, *flags, "--deadline=120")
  assert [(r["arm"], r["direction"]) for r in records[:2]] == [
    ("copy", "forward"), ("copy", "backward")
  ]  # fmt: skip
  for record in records[2:4]:
    assert record["arm"] == "xla_no_stack" and record["status"] == "ok"
    assert record["share_of_copy"] > 0 and record["relative_l2_error"] < 1e-2
  assert [r["arm"] for r in records[4:]] == ["liger", "liger"]


def test_offsets_of_32_bits_do_not_reach_the_largest_reads():
  liger, fla = torch_arms.READ_ARMS["liger"], torch_arms.READ_ARMS["fla_checkpoint_0"]
  large = ReadShape(8192, 8192, 64)
  assert "32 bits" in liger.obstacle(large) and "4,294,967,296" in liger.obstacle(large)
  fitting = ReadShape(32768, 4096, 16)  # 2^31 elements
  for arm, shape in ((liger, fitting), (fla, large), (liger, ReadShape(8192, 7168, 9))):
    assert "32 bits" not in (arm.obstacle(shape) or "")
  assert large not in arg_specs.READS  # a minute and a half of ptxas alone


def test_shares_are_those_of_a_copy_by_the_same_timer():
  copy = {"arm": "copy", "bytes": 8e6, "median_ms": 2.0, "timer": "cupti"}
  same = {"arm": "direct", "bytes": 6e6, "median_ms": 3.0, "timer": "cupti"}
  other = {"arm": "fla", "bytes": 6e6, "median_ms": 3.0, "timer": "cuda events"}
  suites._share_of_copy([copy, same, other, {"arm": "liger", "status": "failed"}])
  assert same["share_of_copy"] == pytest.approx(0.5) and other["gb_per_s"] == 2.0
  assert "share_of_copy" not in other


def test_the_first_timer_that_works_is_taken():
  def fails():
    raise RuntimeError("not permitted")

  runner = suites._Runner({"status": "ok"}, {"cupti": fails, "loop": lambda: lambda: 2e-3})
  nothing = suites._Runner({"status": "ok"}, {"cupti": fails})
  suites._sample([runner, nothing], 3)
  assert runner.record["timer"] == "loop" and runner.record["median_ms"] == 2.0
  assert "timer" not in nothing.record and "not permitted" in nothing.record["status"]


@pytest.mark.parametrize(
  ("flags", "words"),
  [
    (["--shapes=8x128"], ["--shapes", "8x128", "TxDxN"]),
    (["--networks=8"], ["--networks", "LxSxTxD"]),
    (["--arms=triton"], ["--arms", "triton", "direct", "liger"]),
    (["--suites=all"], ["--suites", "all", "network"]),
    (["--repeats=0"], ["--repeats", "0"]),
    (["--network-bytes", "--chips=h800"], ["--chips", "h800", "v5e"]),
    (["--deadline=soon"], ["--deadline", "soon"]),
    (["--speed"], ["--speed"]),
  ],
)
def test_a_wrong_flag_is_one_line(flags, words, capsys):
  with pytest.raises(ValueError) as wrong:
    command.main(flags)
  assert capsys.readouterr() == ("", "")
  assert all(word in str(wrong.value) for word in words) and "\n" not in str(wrong.value)


def test_network_bytes_on_the_compiler_of_the_cpu(tmp_path, capsys):
  shape = NetworkShape(2, 2, 64, 128)
  network_bytes.main(
    tmp_path, "cpu", network_bytes.target("cpu"), shape, ["xla_stack", "xla_no_stack"]
  )
  report = json.loads((tmp_path / "network_bytes_cpu.json").read_text())
  stack, no_stack = report["rows"]
  assert (stack["arm"], no_stack["arm"]) == ("xla_stack", "xla_no_stack")
  hand = arg_specs.direct_forward(shape) + arg_specs.direct_backward(shape)
  assert stack["least"] == no_stack["least"] == hand / 2
  assert stack["reported"] > no_stack["reported"] > hand / 2
  assert "xla_no_stack" in capsys.readouterr().out


def test_a_chip_that_the_compiler_tells_no_bytes_of_is_one_line():
  with pytest.raises(ValueError, match=r"chip 'h100' is unknown; allowed: cpu, v4, v5e"):
    command.main(["--network-bytes", "--chips=h100"])


def test_a_missing_libtpu_is_one_line(tmp_path, monkeypatch):
  monkeypatch.setattr(network_bytes, "find_spec", lambda name: None)
  with pytest.raises(ValueError, match=r"compiling for v5e needs libtpu: .*--chips=cpu"):
    command.main(["--network-bytes", f"--out={tmp_path}"])


def test_published_kernels_get_the_arrays_and_give_the_cotangents_of_the_others(monkeypatch):
  torch = pytest.importorskip("torch")

  def attend(query, gain, stacked, eps):
    keys = torch.nn.functional.rms_norm(stacked.float(), stacked.shape[-1:], gain, eps)
    weights = torch.softmax(torch.einsum("n...d,d->n...", keys, query), 0)
    return torch.einsum("n...,n...d->...d", weights, stacked.float()).to(stacked.dtype)

  fakes = {
    "fused_attnres": lambda query, sources, gain, rms_eps, checkpoint_level: attend(
      query, gain, torch.stack(sources), rms_eps
    ),
    "liger_attn_res": lambda stacked, query, gain, eps: attend(query, gain, stacked, eps),
  }
  shape = ReadShape(4, 128, 3)
  own = reads.arms(shape)["xla_no_stack"]
  for arm in torch_arms.READ_ARMS.values():
    module = ModuleType(arm.module)
    setattr(module, arm.function, fakes[arm.function])
    monkeypatch.setitem(sys.modules, arm.module, module)
    for direction, (make, _) in cases.DIRECTIONS.items():
      case = make(own)
      got = torch_arms.to_jax(torch_arms.run(arm, shape, own.inputs, own.d_out, direction)())
      assert_close(got, case.compiled(*case.args), 6e-3)
