"""Speedrun practice: the embedding in every layer, backout, U-Net skips."""

from tests.helpers.systems.common import Case, Costs, D, num_layers, sublayers


def x0_residual(params, weights, x, sites, *, init="standard", backout=False):
  x0, kept = x, None
  for layer, index, run in sublayers(weights, sites):
    if index == 0:
      x = params["stream_scale"][layer] * x + params["embedding_scale"][layer] * x0
    x = x + run(x)[1]
    if layer == num_layers(weights, sites) // 2 and index == len(sites) - 1:
      kept = x
  return x - params["backout_scale"] * kept if backout else x


def unet_skips(params, weights, x, sites, *, mix_embedding=False):
  depth, x0 = num_layers(weights, sites), x
  half, pushed, popped = depth // 2, [], 0
  for layer, index, run in sublayers(weights, sites):
    if index == 0 and mix_embedding:
      x = params["stream_scale"][layer] * x + params["embedding_scale"][layer] * x0
    if index == 0 and layer >= depth - half:
      x = x + params["weight"][popped] * pushed.pop()
      popped += 1
    x = x + run(x)[1]
    if index == len(sites) - 1 and layer < half:
      pushed.append(x)
  assert not pushed
  return x


EQUATIONS = {"x0_residual": x0_residual, "unet_skips": unet_skips}

_LEARNS = ("stream_scale", "embedding_scale")

CASES = (
  Case("x0_residual", standard_at_init=True, learns_at_init=_LEARNS),
  Case("x0_residual", {"init": "nanochat"}, learns_at_init=_LEARNS),
  Case(
    "x0_residual",
    {"backout": True},
    standard_at_init=True,
    learns_at_init=(*_LEARNS, "backout_scale"),
  ),
  Case("unet_skips", standard_at_init=True, learns_at_init=("weight",)),
  Case(
    "unet_skips",
    {"mix_embedding": True},
    standard_at_init=True,
    learns_at_init=(*_LEARNS, "weight"),
  ),
)

COSTS = {  # L = 2, two sites
  ("x0_residual",): Costs(2 * 2, 2 * D, (2 * 3 + 4) * D),
  ("x0_residual", ("backout", True)): Costs(2 * 2 + 1, 3 * D, (2 * 3 + 4 + 2) * D),
  ("unet_skips",): Costs(1, 3 * D, (4 + 2) * D),
  ("unet_skips", ("mix_embedding", True)): Costs(1 + 2 * 2, 3 * D, (4 + 2 + 2 * 3) * D),
}

BAD_OPTIONS = (  # for 3 layers
  ("x0_residual", {"init": "zero"}, ["init='zero'", "standard, nanochat"]),
  ("x0_residual", {"backout": 0.2}, ["backout=0.2", "True, False"]),
  ("unet_skips", {"num_layers": 1}, ["num_layers=1", "at least 2"]),
  ("unet_skips", {"weight": 1.0}, ["'weight'", "'unet_skips'", "allowed: mix_embedding"]),
  ("unet_skips", {"mix_embedding": 1}, ["mix_embedding=1", "True, False"]),
)
