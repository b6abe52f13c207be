"""Initial values of combinators that start from published numbers."""

import numpy as np

from resjax.testing import toy


def test_x0_residual_starts_like_nanochat():
  made = toy.build("x0_residual", {"init": "nanochat", "backout": True}, random=False)
  params = toy.parameters(made)
  np.testing.assert_allclose(params["stream_scale"], [1.15, 1.125, 1.1, 1.075, 1.05], rtol=1e-6)
  np.testing.assert_allclose(
    params["embedding_scale"], [0.2, 0.1625, 0.125, 0.0875, 0.05], rtol=1e-6
  )
  np.testing.assert_allclose(params["backout_scale"], 0.2, rtol=1e-6)


def test_layerscale_starts_smaller_in_deeper_networks():
  for num_layers, value in ((18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6)):
    made = toy.build("layerscale", {}, num_layers=num_layers, random=False)
    np.testing.assert_allclose(toy.parameters(made)["scale"], value, rtol=1e-6)


def test_laurel_starts_with_orthogonal_columns_of_the_paper():
  made = toy.build("laurel", {"variant": "lr", "rank": 2}, random=False)
  for down in toy.parameters(made)["down"].reshape(-1, toy.D, 2):
    np.testing.assert_allclose(down.T @ down, np.eye(2) / 4, atol=1e-6)  # D / r times 1 / (r D)


def test_deepnorm_starts_its_branches_with_the_gain_of_the_paper():
  for num_layers in (1, 18):
    made = toy.build("deepnorm", {}, num_layers=num_layers, random=False)
    np.testing.assert_allclose(made.alpha, (2 * num_layers) ** 0.25)
    np.testing.assert_allclose(made.branch_init_gain, (8 * num_layers) ** -0.25)
