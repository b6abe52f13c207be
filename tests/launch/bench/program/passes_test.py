"""Passes of programs: known ones, and real steps against a count that shares no code with ours."""

import pathlib

import jax
import pytest
from flax import nnx

from configs import base, llama_1p3b
from launch.bench.program import hlo
from launch.bench.program.depth_floor import depth_floor
from launch.bench.program.hlo_calls import runs
from launch.bench.program.moved_bytes import moved
from launch.bench.program.parts import (
  ATTENTION,
  COLLECTIVES,
  DEPTH,
  LOOPS,
  NORMS,
  PREFETCHES,
  PROJECTIONS,
  Parts,
)  # fmt: skip
from launch.bench.program.passes import count_passes, pass_bytes
from resjax import combinators
from resjax.aot import absent_devices, program_text
from resjax.train import experiment, program
from tests.helpers.libtpu import needs_libtpu
from tests.helpers.xla_bytes import Known, step_bytes

PROGRAMS = pathlib.Path(__file__).parent / "programs"
TEXT = (PROGRAMS / "tpu_streams.txt").read_text()
SYSTEMS = (
  "standard", "attn_res", "delta_attn_res", "block_attn_res", "delta_block_attn_res",
  "hyper_connections", "mhc", "gated_residual", "deep_delta", "muddformer",
)  # fmt: skip
ARRAY = 8 * 128 * 2  # the bytes of bf16[8,128]


def counted(text):
  """The bytes of each instruction, in all runs, by its name."""
  found = {}
  for run in runs(hlo.parse(text)):
    for line in run.integers.computation.instructions.values():
      one = moved(run.integers, line)
      total, hbm = found.get(line.name, (0, 0))
      found[line.name] = total + one.total * run.times, hbm + one.hbm * run.times
  return found


def per_trip(name):
  """What an instruction of the loop of six trips moves in one, in arrays."""
  total, hbm = counted(TEXT)[name]
  return total / 6 / ARRAY, hbm / 6 / ARRAY


@pytest.mark.parametrize(
  ("name", "total", "hbm"),
  [
    ("product", 1 + 16 + 1 + 1, 19),  # view, one weight of a stack of six, addend, result
    ("store", 1 + 1, 2),  # one row of a stack is written
    ("turned", 1 + 1, 2),  # by a fusion that only relabels
    ("prefetch", 1 + 1, 1),
    ("prefetched", 0, 0),
    ("scaled", 2 + 1, 1),  # reads on chip
    ("splash.1", 2 + 1, 3),  # declares nothing
    ("depth_attention_merge_forward.1", 3.25, 2.25),  # declares it; one array is on chip
    # Every other trip, with 4 slots, 2 rows, and sources 1, 2 and 3.
    ("depth_attention_block_forward.1", (3 * 2 + 1 + 2 + 3) / 6, 2),
    ("empty", 0, 0),
  ],
)
def test_an_instruction_moves_what_it_reads_and_writes(name, total, hbm):
  assert per_trip(name) == pytest.approx((total, hbm), rel=2e-3)


def test_a_program_moves_what_an_independent_count_says():
  known = Known(trips=lambda _: 6, shares=(0.5, 0.5), sources=lambda _: (2, 1))
  total = sum(total for total, _ in counted(TEXT).values())
  assert step_bytes(TEXT, known) == pytest.approx(total, rel=2e-3)


def test_a_branch_and_sources_that_depend_on_data_count_in_full_and_are_named():
  text = TEXT.replace(
    "%starts = pred[]{:T(512)} compare(%i,", "%starts = pred[]{:T(512)} never(%i,"
  )
  text = text.replace("remainder(%i, %two)", "rng(%zero, %two)")
  text = text.replace("divide(%o.2, %o.3)", "rng(%o.2, %o.3)")
  declared = 4 + 2
  total, _ = counted(text)["depth_attention_block_forward.1"]
  assert total / 6 / ARRAY == declared
  found = count_passes(hlo.parse(text), small("block_attn_res"))
  assert found.guessed == ("cond", "depth_attention_block_forward.1")
  assert count_passes(hlo.parse(TEXT), small("block_attn_res")).guessed == ()


# One loop writes how many sources there are in each trip, and a later one reads that backwards, as
# a reverse pass does with what the forward pass kept.
KEPT = """HloModule jit_step, is_scheduled=true

%keep (k: (s32[], s32[4])) -> (s32[], s32[4]) {
  %k = (s32[], s32[4]{0}) parameter(0)
  %k.0 = s32[] get-tuple-element(%k), index=0
  %k.1 = s32[4]{0} get-tuple-element(%k), index=1
  %k.2 = s32[] constant(1)
  %k.3 = s32[] add(%k.0, %k.2)
  %k.4 = s32[1]{0} bitcast(%k.3)
  %k.5 = s32[4]{0} dynamic-update-slice(%k.1, %k.4, %k.0)
  ROOT %k.6 = (s32[], s32[4]{0}) tuple(%k.3, %k.5)
}

%more (m: (s32[], s32[4])) -> pred[] {
  %m = (s32[], s32[4]{0}) parameter(0)
  %m.0 = s32[] get-tuple-element(%m), index=0
  %m.1 = s32[] constant(4)
  ROOT %m.2 = pred[] compare(%m.0, %m.1), direction=LT
}

%read (r: (s32[], s32[4], bf16[4,8,128])) -> (s32[], s32[4], bf16[4,8,128]) {
  %r = (s32[], s32[4]{0}, bf16[4,8,128]{2,1,0}) parameter(0)
  %r.0 = s32[] get-tuple-element(%r), index=0
  %r.1 = s32[4]{0} get-tuple-element(%r), index=1
  %r.2 = bf16[4,8,128]{2,1,0} get-tuple-element(%r), index=2
  %r.3 = s32[] constant(1)
  %r.4 = s32[] subtract(%r.0, %r.3)
  %r.5 = s32[1]{0} dynamic-slice(%r.1, %r.4), dynamic_slice_sizes={1}
  %depth_attention_forward.1 = bf16[8,128]{1,0} custom-call(%r.5, %r.2, %r.2, %r.2, %r.2), custom_call_target="tpu_custom_call", operand_layout_constraints={s32[1]{0}, bf16[4,8,128]{2,1,0}, bf16[4,8,128]{2,1,0}, bf16[4,8,128]{2,1,0}, bf16[4,8,128]{2,1,0}}, backend_config={"custom_call_config":{"cost_estimate":{"flops":"1","transcendentals":"0","bytes_accessed":"10240"}}}
  ROOT %r.6 = (s32[], s32[4]{0}, bf16[4,8,128]{2,1,0}) tuple(%r.4, %r.1, %r.2)
}

%some (n: (s32[], s32[4], bf16[4,8,128])) -> pred[] {
  %n = (s32[], s32[4]{0}, bf16[4,8,128]{2,1,0}) parameter(0)
  %n.0 = s32[] get-tuple-element(%n), index=0
  %n.1 = s32[] constant(0)
  ROOT %n.2 = pred[] compare(%n.0, %n.1), direction=GT
}

ENTRY %main (p.0: bf16[4,8,128]) -> (s32[], s32[4], bf16[4,8,128]) {
  %p.0 = bf16[4,8,128]{2,1,0} parameter(0)
  %zero = s32[] constant(0)
  %empty = s32[4]{0} custom-call(), custom_call_target="AllocateBuffer"
  %begin = (s32[], s32[4]{0}) tuple(%zero, %empty)
  %forward = (s32[], s32[4]{0}) while(%begin), condition=%more, body=%keep
  %end = s32[] get-tuple-element(%forward), index=0
  %kept = s32[4]{0} get-tuple-element(%forward), index=1
  %turn = (s32[], s32[4]{0}, bf16[4,8,128]{2,1,0}) tuple(%end, %kept, %p.0)
  ROOT %reverse = (s32[], s32[4]{0}, bf16[4,8,128]{2,1,0}) while(%turn), condition=%some, body=%read
}
"""  # noqa: E501


def test_what_a_loop_wrote_is_known_in_a_later_one():
  total, _ = counted(KEPT)["depth_attention_forward.1"]
  assert total / ARRAY == (4 + 3 + 2 + 1) + 4  # sources of each trip, and a result of each
  assert count_passes(hlo.parse(KEPT), small("attn_res")).guessed == ()


def test_parts():
  module = hlo.parse(TEXT)
  body, parts = module.computations["body"], Parts(module)
  expected = {
    "product": PROJECTIONS,  # though its last operation is the addition
    "prefetch": PREFETCHES,
    "scaled": NORMS,
    "turned": NORMS,  # has no name, and reads a norm
    "splash.1": ATTENTION,
    "depth_attention_merge_forward.1": DEPTH,
    "store": LOOPS,
  }
  assert {name: parts.of(body, body.instructions[name]) for name in expected} == expected


# What a loop adds to begins as zeros without a name, beside what another part computed.
LOOP = """HloModule jit_step, is_scheduled=true

%body (b: (bf16[8,128], f32[32,128])) -> (bf16[8,128], f32[32,128]) {
  ROOT %b = (bf16[8,128]{1,0}, f32[32,128]{1,0}) parameter(0)
}

%condition (c: (bf16[8,128], f32[32,128])) -> pred[] {
  %c = (bf16[8,128]{1,0}, f32[32,128]{1,0}) parameter(0)
  ROOT %c.1 = pred[] constant(false)
}

ENTRY %main (p.0: bf16[8,128]) -> (bf16[8,128], f32[32,128]) {
  %p.0 = bf16[8,128]{1,0} parameter(0)
  %mixed = bf16[8,128]{1,0} negate(%p.0), metadata={op_name="jit(step)/depth_mixing/neg"}
  %zero = f32[] constant(0)
  %zeros = f32[32,128]{1,0} broadcast(%zero), dimensions={}
  %carry = (bf16[8,128]{1,0}, f32[32,128]{1,0}) tuple(%mixed, %zeros)
  ROOT %loop = (bf16[8,128]{1,0}, f32[32,128]{1,0}) while(%carry), condition=%condition, body=%body, metadata={op_name="jit(step)/layers/while"}
}
"""  # noqa: E501


def test_what_a_loop_begins_with_is_part_of_the_loop():
  module = hlo.parse(LOOP)
  main, parts = module.computations["main"], Parts(module)
  found = {name: parts.of(main, main.instructions[name]) for name in ("mixed", "zeros", "loop")}
  assert found == {"mixed": DEPTH, "zeros": LOOPS, "loop": LOOPS}


# Fusions for depth mixing, of which one cuts a row out of a stack, and one also adds.
CUTS = """HloModule jit_step, is_scheduled=true

%cut (c.0: f32[6,8,128], c.1: s32[]) -> f32[128,8] {
  %c.0 = f32[6,8,128]{2,1,0} parameter(0)
  %c.1 = s32[] parameter(1)
  %c.2 = s32[] constant(0)
  %c.3 = f32[1,8,128]{2,1,0} dynamic-slice(%c.0, %c.1, %c.2, %c.2), dynamic_slice_sizes={1,8,128}, metadata={op_name="jit(step)/layers/while/body/dynamic_slice"}
  ROOT %c.4 = f32[128,8]{0,1} bitcast(%c.3), metadata={op_name="jit(step)/layers/while/body/depth_mixing/transpose"}
}

%add (a.0: f32[6,8,128], a.1: s32[]) -> f32[1,8,128] {
  %a.0 = f32[6,8,128]{2,1,0} parameter(0)
  %a.1 = s32[] parameter(1)
  %a.2 = s32[] constant(0)
  %a.3 = f32[1,8,128]{2,1,0} dynamic-slice(%a.0, %a.1, %a.2, %a.2), dynamic_slice_sizes={1,8,128}, metadata={op_name="jit(step)/layers/while/body/dynamic_slice"}
  ROOT %a.4 = f32[1,8,128]{2,1,0} add(%a.3, %a.3), metadata={op_name="jit(step)/layers/while/body/depth_mixing/add"}
}

ENTRY %main (p.0: f32[6,8,128], p.1: s32[]) -> (f32[128,8], f32[1,8,128]) {
  %p.0 = f32[6,8,128]{2,1,0} parameter(0)
  %p.1 = s32[] parameter(1)
  %row = f32[128,8]{0,1} fusion(%p.0, %p.1), kind=kLoop, calls=%cut, metadata={op_name="jit(step)/layers/while/body/depth_mixing/transpose"}
  %sum = f32[1,8,128]{2,1,0} fusion(%p.0, %p.1), kind=kLoop, calls=%add, metadata={op_name="jit(step)/layers/while/body/depth_mixing/add"}
  ROOT %both = (f32[128,8]{0,1}, f32[1,8,128]{2,1,0}) tuple(%row, %sum)
}
"""  # noqa: E501


def test_a_row_cut_out_of_a_stack_is_part_of_the_loop():
  module = hlo.parse(CUTS)
  main, parts = module.computations["main"], Parts(module)
  assert parts.of(main, main.instructions["row"]) == LOOPS
  assert parts.of(main, main.instructions["sum"]) == DEPTH


# Two fusions that compute while devices exchange, as the compiler for TPUs writes.
EXCHANGE = """HloModule jit_step, is_scheduled=true

%begin (c.0: bf16[8,128]) -> (bf16[8,128], bf16[32,128], u32[]) {
  %c.0 = bf16[8,128]{1,0} parameter(0)
  %c.1 = bf16[32,128]{1,0} all-gather(%c.0), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %c.2 = (bf16[8,128]{1,0}, bf16[32,128]{1,0}, u32[]{:S(2)}) custom-call(%c.1), custom_call_target="Begin"
}

%multiply (m.0: bf16[8,128], m.1: bf16[32,128], m.2: u32[], m.3: bf16[8,128]) -> (bf16[8,128], bf16[8,128], bf16[32,128], u32[]) {
  %m.0 = bf16[8,128]{1,0} parameter(0)
  %m.1 = bf16[32,128]{1,0} parameter(1)
  %m.2 = u32[]{:S(2)} parameter(2)
  %m.3 = bf16[8,128]{1,0} parameter(3)
  %m.4 = bf16[8,8]{1,0} convolution(%m.3, %m.3), dim_labels=bf_oi->bf, metadata={op_name="jit(step)/mlp/projection/dot"}
  %m.5 = bf16[32,128]{1,0} all-gather(%m.0), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %m.6 = (bf16[8,8]{1,0}, bf16[8,128]{1,0}, bf16[32,128]{1,0}, u32[]{:S(2)}) tuple(%m.4, %m.0, %m.5, %m.2)
}

%end (e.0: bf16[8,128], e.1: bf16[32,128], e.2: u32[]) -> bf16[32,128] {
  %e.0 = bf16[8,128]{1,0} parameter(0)
  %e.1 = bf16[32,128]{1,0} parameter(1)
  %e.2 = u32[]{:S(2)} parameter(2)
  %e.3 = bf16[32,128]{1,0} all-gather(%e.0), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}
  ROOT %e.4 = bf16[32,128]{1,0} custom-call(%e.0, %e.1, %e.3, %e.2), custom_call_target="End"
}

ENTRY %main (p.0: bf16[8,128]) -> bf16[32,128] {
  %p.0 = bf16[8,128]{1,0} parameter(0)
  %start = (bf16[8,128]{1,0}, bf16[32,128]{1,0}, u32[]{:S(2)}) fusion(%p.0), kind=kCustom, calls=%begin
  %given = bf16[8,128]{1,0} get-tuple-element(%start), index=0
  %taken = bf16[32,128]{1,0} get-tuple-element(%start), index=1
  %flag = u32[]{:S(2)} get-tuple-element(%start), index=2
  %product = (bf16[8,8]{1,0}, bf16[8,128]{1,0}, bf16[32,128]{1,0}, u32[]{:S(2)}) fusion(%given, %taken, %flag, %p.0), kind=kOutput, calls=%multiply
  %given.1 = bf16[8,128]{1,0} get-tuple-element(%product), index=1
  %taken.1 = bf16[32,128]{1,0} get-tuple-element(%product), index=2
  %flag.1 = u32[]{:S(2)} get-tuple-element(%product), index=3
  ROOT %done = bf16[32,128]{1,0} fusion(%given.1, %taken.1, %flag.1), kind=kCustom, calls=%end
}
"""  # noqa: E501


def test_arrays_of_an_exchange_count_where_it_starts():
  found = {name: total / ARRAY for name, (total, _) in counted(EXCHANGE).items() if total > 10}
  assert found == pytest.approx({"start": 1 + 4, "product": 1 + 8 * 8 / (8 * 128)}, rel=1e-2)
  module = hlo.parse(EXCHANGE)
  main, parts = module.computations["main"], Parts(module)
  assert parts.of(main, main.instructions["start"]) == COLLECTIVES
  assert parts.of(main, main.instructions["product"]) == PROJECTIONS


def small(residual, devices=None, **changes):
  """A run whose passes are larger than what else a step moves."""
  c = base.get_config()
  c.model.update(num_layers=4, d_model=512, num_heads=4, num_kv_heads=4, mlp_dim=1024, remat="full")
  c.model.residual.name = residual
  for name in ("block_attn_res", "delta_block_attn_res"):
    c.model.residual[name].layers_per_block = 1
  c.data.seq_len = 1024
  c.data.tokenizer.vocab_size = 8192
  c.train.update(batch_size=8, microbatches=1)
  c.update_from_flattened_dict(changes)
  return experiment.build(c, devices or jax.devices()[:1])


def compiled(run):
  return program_text(program.build(run).lower_train_step().compile())


def independent(text, run):
  """Passes per sublayer by the count that shares no code with `count_passes`."""
  decoder, options = run.decoder, run.decoder.residual.options
  per_block, appended = options.get("layers_per_block"), 1
  if per_block is None:  # every site appends a source
    per_block, appended = 1, 2
  chunks = run.train.batch_size * run.data.seq_len // run.train.loss_chunk
  blocks = decoder.num_layers // per_block

  def trips(op_name):
    """Layers are one loop, or one over depth blocks and in it one over the layers of a block."""
    if "loss" in op_name:
      return chunks
    if blocks == decoder.num_layers:
      return blocks
    return per_block if op_name.count("while") > 1 else blocks

  def sources(kernel):
    """A bank has all that was appended before a block; behind the loops it is full."""
    complete = (blocks - 1) / 2 if "while" in kernel else blocks
    return 1 + appended * complete, 3 if "backward" in kernel else 1

  known = Known(trips, sources=sources)
  return step_bytes(text, known) / pass_bytes(run) / (2 * decoder.num_layers)


def floor_of(run):
  return depth_floor(program.build(run).model.combinator, run.decoder.remat, run.decoder.dtype)


@pytest.mark.parametrize(
  ("remat", "expected"),
  [
    # Per sublayer: merges; phase 1 of 1..8 sources and 6 results; the read of 9 for the output.
    ("full", 3 + 3.25 + 6.25 + 2 * (4.5 / 6 + 1) + 3 * 4.5 / 6 + 1 + (10 + 28) / 48),
    ("none", 3.25 + 6.25 + 2 * (4.5 / 6 + 1) + 3 * 4.5 / 6 + 1 + (10 + 28) / 48),
  ],
)
def test_the_least_that_two_phases_move(remat, expected):
  residual = combinator("block_attn_res", num_layers=24, d_model=2048, layers_per_block=3)
  assert depth_floor(residual, remat, "bfloat16").sum == pytest.approx(expected)


def test_the_least_that_two_phases_of_full_reads_move():
  """Each layer opens with 1 and 3 sources for two sites, of which the second one merges."""
  full = combinator("attn_res", num_layers=2, d_model=512, two_phase="always")
  phase_1 = 2 * (3 + 5) + (5 + 11)
  sites = (2 + 3 + 2 + 3.25) + (3 + 6.25)
  assert depth_floor(full, "full", "bfloat16").sum == (phase_1 + 2 * sites + 5 + 1 + 15 + 1) / 4


def test_the_least_that_direct_reads_move():
  # 1, 2, 3, 4 sources, and 5 at the end
  full = combinator("attn_res", num_layers=2, d_model=256)
  assert depth_floor(full, "none", "bfloat16").sum == (14 + 34 + 6 + 16) / 4
  assert depth_floor(full, "full", "bfloat16").sum == (2 * 14 + 34 + 6 + 16) / 4
  one = combinator("block_attn_res", num_layers=2, d_model=256, layers_per_block=2)
  # 1 source, then 2; 2 at the end
  assert depth_floor(one, "none", "bfloat16").sum == (2 + 3 * 3 + 4 + 3 * 7 + 3 + 7) / 4
  streams = combinator("mhc", num_layers=2, d_model=256, num_streams=3)
  assert depth_floor(streams, "none", "bfloat16").sum == 8 + 12 + (5 + 9) / 4
  # Of the two reads of a layer that is computed again the last one gives no streams.
  assert depth_floor(streams, "full", "bfloat16").sum == 8 + (8 + 5) / 2 + 12 + (5 + 9) / 4
  assert depth_floor(combinator("standard", num_layers=2, d_model=256), "none", "float32") is None


def combinator(name, **options):
  sites = ("attention", "mlp")
  return nnx.eval_shape(lambda: combinators.build(name, sites=sites, rngs=nnx.Rngs(0), **options))


@needs_libtpu
@pytest.mark.slow
def test_passes_of_a_small_step(no_tpu):
  """The kernels of two phases move what formulas say; the whole is what XLA's own rules say."""
  run = small("block_attn_res", absent_devices.describe("v5e-1").devices)
  text = compiled(run)
  passes, floor = count_passes(hlo.parse(text), run), floor_of(run)
  assert passes.guessed == ()
  assert sum(passes.total.values()) == pytest.approx(independent(text, run), rel=0.005)
  assert floor.sum < passes.total[DEPTH] < 1.5 * floor.sum


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize("residual", SYSTEMS)
def test_passes_of_systems_are_those_of_an_independent_count(no_tpu, residual):
  run = small(residual, absent_devices.describe("v5e-1").devices)
  text = compiled(run)
  passes = count_passes(hlo.parse(text), run)
  assert passes.guessed == ()
  assert sum(passes.total.values()) == pytest.approx(independent(text, run), rel=0.01)


@needs_libtpu
@pytest.mark.slow
@pytest.mark.parametrize(("residual", "expected"), [("standard", 146.4), ("block_attn_res", 162.2)])
def test_passes_of_the_step_of_the_1p3b_config(no_tpu, residual, expected):
  """The figures of docs/kernels.md."""
  c = llama_1p3b.get_config(residual)
  c.update_from_flattened_dict({"model.remat": "full", "train.batch_size": 4, "mesh.fsdp": 1})
  run = experiment.build(c, absent_devices.describe("v5p-8").devices[:1])
  text = compiled(run)
  total = sum(count_passes(hlo.parse(text), run).total.values())
  assert total == pytest.approx(expected, rel=0.01)
  assert total == pytest.approx(independent(text, run), rel=0.005)
