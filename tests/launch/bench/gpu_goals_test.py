"""What a day at a GPU has reached, from records that are made up."""

import pytest

from launch.bench import gpu_goals

GPU = {"device": "H100", "platform": "gpu"}


def kernel(form, forward, backward, timer="cupti", **more):
  rows = [
    {"arm": form, "direction": d, "median_ms": ms, "timer": timer, "status": "ok"} | more
    for d, ms in (("forward", forward), ("backward", backward))
  ]
  copies = [{"arm": "copy", "direction": "forward", "median_ms": 9.0, "share_of_copy": 1.0}]
  return {f"read 8192x2048x8 {form}": {"status": "ok", "records": copies + rows}}


def step(*residuals, mfu=0.3, words="", **more):
  cases = {name: {"median_ms": 1.0, "mfu": mfu} for name in residuals}
  return {f"step gpt2_124m {','.join(residuals)}{words}": {"status": "ok", "cases": cases} | more}


ALL = {
  **{f"right {n}": {"status": status} for n, status in enumerate(["ok", "ok", "ok", "wrong"])},
  **{"right later": {"status": "no time left"}, "right now": {"status": "running"}},
  **step("standard"),
  **step("standard", mfu=0.41, words=" remat=none"),
  **step("standard", "block_attn_res", **{"block_attn_res over standard": 1.03}),
  **step("standard", "mhc", **{"mhc over standard": 1.08}),
  **kernel("direct", 0.10, 0.20, share_of_copy=0.91),
  **kernel("fla_checkpoint_0", 0.25, 0.35),
  **kernel("fla_checkpoint_1", 0.20, 0.34),
}


def reached(arms, about=GPU):
  lines = gpu_goals.table({"about": about, "arms": arms}).splitlines()
  return [line[62:].strip() for line in lines[-len(gpu_goals.GOALS) :]]


def test_what_was_reached_of_each_goal():
  found = reached(ALL)
  assert found == ["0.75  MISSED", "0.41", "1.03", "1.08  MISSED", "0.91", "0.91", "1.8"]
  lines = gpu_goals.table({"about": GPU, "arms": ALL}).splitlines()
  assert lines[:2] == ["13 arms on H100, gpu; 3 not ok", "  right 3: wrong"]


def test_nothing_was_measured_on_a_cpu_or_where_records_are_missing():
  assert set(reached(ALL, GPU | {"platform": "cpu"})) == {"not measured"}
  assert set(reached({}, {})) == {"not measured"}
  half = {"read 8192x2048x8 direct": {"status": "killed by SIGABRT"}}
  assert set(reached(half)) == {"not measured"}


@pytest.mark.parametrize("other", [{}, kernel("fla_checkpoint_0", 0.25, 0.35, timer="cuda events")])
def test_a_peer_counts_if_it_has_the_same_timer(other):
  assert reached(kernel("direct", 0.1, 0.2, share_of_copy=0.8) | other)[-1] == "not measured"
