"""Tile sizes of the TPU kernels."""

import dataclasses

import pytest

from resjax.base.hardware.chips import TPU_CHIPS
from resjax.kernels.depth_attention.mosaic_tpu import tiles
from resjax.kernels.depth_attention.mosaic_tpu.tiles import PassSizes, TpuTiles

KIB = 2**10


def work(name="forward", chip="v5e", num_tokens=8192, width=2048, slots=(0, 8), **flags):
  flags = {"dtype": "bfloat16", "adds": False, "normed": False, "threaded": False} | flags
  return PassSizes(name, chip, num_tokens, width, *slots, **flags)


@pytest.mark.parametrize(
  ("sizes", "words"),
  [
    ({"tokens": 0}, ["tokens=0", "16, 32, 64"]),
    ({"tokens": 48}, ["tokens=48", "128"]),
    ({"tokens": 64, "slots": 0}, ["slots=0", "1 to 128"]),
  ],
)
def test_sizes_that_no_kernel_has_are_refused(sizes, words):
  with pytest.raises(ValueError) as refused:
    TpuTiles(**sizes)
  assert all(word in str(refused.value) for word in words)


def test_bytes_on_the_chip_are_those_counted_by_hand():
  tile = 64 * 2048 * 2 // KIB  # 256 KiB
  forward = work(slots=(6, 2), adds=True).vmem_bytes(TpuTiles(64))
  assert forward["sources"] == 2 * 8 * tile * KIB
  assert forward["addend and sum"] == 4 * tile * KIB
  assert forward["statistics"] == 2 * (8 + 8 + 8) * 128 * 4
  backward = work("backward", slots=(6, 2), normed=True).vmem_bytes(TpuTiles(64))
  assert backward["cotangents of sources"] == 2 * 2 * tile * KIB
  assert backward["cotangent of the bank"] == 2 * 6 * tile * KIB
  assert backward["cotangents of query and gain"] == 2 * 2 * 8 * 2048 * 4
  threaded = work("backward", slots=(6, 2), threaded=True).vmem_bytes(TpuTiles(64))
  assert threaded["cotangents of sources"] == 4 * 2 * tile * KIB
  assert threaded["cotangent of the bank"] == 3 * 6 * tile * KIB


@pytest.mark.parametrize("chip", TPU_CHIPS)
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_the_largest_tile_that_fits_is_chosen(chip, name):
  for width in (128, 2048, 7168):
    for slots in (1, 8, 16, 64):
      asked = work(name, chip, 2**16, width, (0, slots), threaded=True)
      chosen = tiles.choose(asked)
      if chosen is None:
        assert not asked.fits(TpuTiles(16))
        continue
      assert asked.fits(chosen)
      larger = TpuTiles(max(128, 2 * chosen.tokens)) if chosen.tokens >= 64 else None
      assert chosen.tokens == 256 or larger is None or not asked.fits(larger)


def test_few_tokens_have_small_tiles():
  assert tiles.choose(work(num_tokens=8192)).tokens == 256
  assert tiles.choose(work(num_tokens=1024)).tokens == 64
  assert tiles.choose(work(num_tokens=5)).tokens == 16
  # Two cores share the tiles.
  assert [tiles.choose(work(chip=chip, num_tokens=4096)).tokens for chip in ("v5e", "v5p")] == [
    256,
    128,
  ]


def test_less_memory_has_smaller_tiles():
  asked = work("backward", num_tokens=2**16, slots=(0, 16), width=4096)
  sizes = [tiles.choose(dataclasses.replace(asked, chip=chip)).tokens for chip in ("v5e", "v5p")]
  assert sizes[0] == 2 * sizes[1]


def test_what_does_not_fit_is_told_with_its_bytes():
  told = tiles.obstacle(work("backward", "v5p", width=16384, slots=(0, 64), threaded=True))
  assert all(word in told for word in ("16 tokens of 64 sources", "sources 64.0", "MiB", "v5p"))
  assert tiles.obstacle(work()) is None
