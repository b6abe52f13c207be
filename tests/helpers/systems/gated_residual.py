"""Gated Residual of Qwen3.8-Flash-Next."""

import numpy as np

from tests.helpers.reference import rms
from tests.helpers.systems.common import Case, Costs, D, sigmoid, sublayers


def normed_and_read(streams, gain, down, up, eps):
  """R̂ and x [B, T, D], of streams [B, T, R, D]."""
  *batch, r, width = streams.shape
  normed = rms(streams, eps) * gain
  flat = normed.reshape(*batch, r * width)
  z = flat @ down.reshape(r * width, -1) / r
  gates = sigmoid(np.einsum("btk,rkd->btrd", z * sigmoid(z), up))
  return flat, (gates * normed).sum(axis=2) / r


def gated_residual(
  params, weights, x, sites, *,
  num_streams=4, rank=0, shared_gain=False, init="neutral", eps=1e-6,
):  # fmt: skip
  streams = np.stack([x] * num_streams, axis=2)
  for layer, index, run in sublayers(weights, sites, pre_norm=False):
    gain, down, up, inject = (
      params[name][layer, index] for name in ("gain", "down", "up", "inject")
    )
    flat, read = normed_and_read(streams, gain, down, up, eps)
    shares = 2 * sigmoid(flat @ inject.reshape(-1, num_streams) / num_streams)
    streams = streams + shares[..., None] * run(read)[1][:, :, None]
  final = (params[f"final_{name}"] for name in ("gain", "down", "up"))
  return normed_and_read(streams, *final, eps)[1]


EQUATIONS = {"gated_residual": gated_residual}

_LEARNS = ("gain", "up", "inject", "final_gain", "final_up")


def _case(learns_at_init=_LEARNS, standard_at_init=True, **options):
  return Case(
    "gated_residual", options,
    standard_at_init=standard_at_init, learns_at_init=learns_at_init,
  )  # fmt: skip


CASES = (
  _case(rank=3, num_streams=3),
  _case(),
  _case(init="published", standard_at_init=False, learns_at_init=(*_LEARNS, "down", "final_down")),
  _case(shared_gain=True, num_streams=2),
  _case(num_streams=1, rank=8),
)


def _costs(streams, rank, gains):
  """L = 2, two sites and the last read: gain, W_down, W_up; W_inject; norm, products, gate."""
  matrices = 2 * rank * streams * D
  read = 2 * matrices + 6 * streams * D + 2 * rank  # z / R and silu
  return Costs(
    5 * (matrices + gains * D) + 4 * streams**2 * D,
    streams * D,
    5 * read + 4 * (2 * streams**2 * D + 2 * streams * D),
  )


COSTS = {
  ("gated_residual",): _costs(4, D // 8, 4),
  ("gated_residual", ("rank", 3), ("shared_gain", True)): _costs(4, 3, 1),
}

BAD_OPTIONS = (
  ("gated_residual", {"num_streams": 0}, ["num_streams=0", "num_streams >= 1"]),
  ("gated_residual", {"rank": -1}, ["rank=-1", "0..8"]),
  ("gated_residual", {"rank": 9}, ["rank=9", "0..8"]),
  ("gated_residual", {"shared_gain": 2}, ["shared_gain=2", "True, False"]),
  ("gated_residual", {"init": "zeros"}, ["init='zeros'", "neutral, published"]),
  ("gated_residual", {"eps": 0.0}, ["eps=0.0", "eps > 0"]),
  (
    "gated_residual",
    {"implementation": "cuda"},
    ["implementation='cuda'", "auto, mosaic_tpu, mosaic_gpu, reference"],
  ),
)
