"""The scaling of the optimizer is that of the package `mup` of Tensor Programs V's authors.

It needs `pip install torch mup`, which no extra of resjax installs.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from resjax.train import optim
from tests.helpers.optimizers import config

torch = pytest.importorskip("torch")
mup = pytest.importorskip("mup")
BASE, WIDTH, V = 4, 16, 11


class Model(torch.nn.Module):
  """An embedding, a matrix with a bias, a norm, and the output embedding."""

  def __init__(self, width):
    super().__init__()
    self.embed = torch.nn.Embedding(V, width)
    self.matrix = torch.nn.Linear(width, width)
    self.norm = torch.nn.LayerNorm(width)
    self.output = mup.MuReadout(width, V, bias=False)


def test_steps_and_logits_are_those_of_mup():
  model = Model(WIDTH)
  mup.set_base_shapes(model, Model(BASE), delta=Model(2 * BASE), rescale_params=False)
  theirs = {
    "embed/embedding": model.embed.weight, "output/embedding": model.output.weight,
    "layers/matrix/kernel": model.matrix.weight, "layers/matrix/bias": model.matrix.bias,
    "layers/norm/scale": model.norm.weight,
  }  # fmt: skip
  decayed = [p for path, p in theirs.items() if path.endswith(("kernel", "embedding"))]
  others = [p for path, p in theirs.items() if not path.endswith(("kernel", "embedding"))]
  settings = {"lr": 0.05, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.5}
  groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
  reference = mup.MuAdamW(groups, **settings)
  c = config(
    schedule="constant", warmup_steps=0, learning_rate=0.05, weight_decay=0.5, clip_norm=0.0
  )
  optimizer = optim.make_optimizer(c, 10, (), optim.Scaling(width=WIDTH / BASE))
  flat = {path: jnp.asarray(p.detach().numpy()) for path, p in theirs.items()}
  # Their matrices are [d_out, d_in]; nothing here depends on the order.
  params = _nested(flat)
  state, rng = optimizer.init(params), np.random.default_rng(0)
  for _ in range(5):
    grads = {path: rng.normal(size=p.shape).astype(np.float32) for path, p in flat.items()}
    for path, p in theirs.items():
      p.grad = torch.tensor(grads[path])
    reference.step()
    updates, state = optimizer.update(_nested(grads), state, params)
    params = optax.apply_updates(params, updates)
  for path, got in jax.tree_util.tree_leaves_with_path(params):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    np.testing.assert_allclose(got, theirs[name].detach().numpy(), atol=3e-6, err_msg=name)
  hidden = rng.normal(size=(3, WIDTH)).astype(np.float32)
  logits = model.output(torch.tensor(hidden)).detach().numpy()
  head = params["output"]["embedding"] / (WIDTH / BASE)  # as `Decoder.head`, see mup_test.py
  np.testing.assert_allclose(hidden @ head.T, logits, atol=1e-5)


def _nested(flat):
  tree = {}
  for path, leaf in flat.items():
    *folders, name = path.split("/")
    place = tree
    for folder in folders:
      place = place.setdefault(folder, {})
    place[name] = leaf
  return tree
