"""Gated Residual against `standard`, as it is and with an MLP that makes up for the parameters.

  resjax sweep --config=ablations/gated_residual --spread=0.002 \
    --config.data.corpora.web.source=FOLDER
  resjax sweep --config=ablations/gated_residual --print_commands

`gated_residual` has about D² parameters per site, 17 % of a dense layer whose MLP has 8 D². The arm
`wide-mlp` is `standard` with as many parameters, and nearly as many FLOPs: what is left of the
difference to it is due to the residual path. `matched_mlp_dim` finds that width for any model.

Size, data, tokens, seeds and the tuning of learning rates are as in
configs/ablations/h100_45min.py.

Hardware: one H100. Time: half of that sweep's, by its estimate; not measured.
Expect: not known for dense models of this size. The paper's gain, 0.027 nats, is that of a sparse
model of 25B parameters on 560B tokens.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs.ablations import h100_45min

PLAN = h100_45min.PLAN | {
  "contrasts": (
    ("gated_residual", "standard"),
    ("gated_residual", "wide-mlp"),
    ("gated_residual", "mhc"),
    ("wide-mlp", "standard"),
  ),
}


def get_config() -> ConfigDict:
  c = h100_45min.get_config()
  c.workdir = "runs/gated_residual"
  return c


def sweep(config: ConfigDict) -> Iterator[tuple[str, dict]]:
  yield "standard", {"model.residual.name": "standard"}
  wide = {"model.residual.name": "standard", "model.mlp_dim": matched_mlp_dim(config.model)}
  yield "wide-mlp", wide
  yield "gated_residual", {"model.residual.name": "gated_residual"}
  yield "mhc", {"model.residual.name": "mhc"}


def matched_mlp_dim(model: ConfigDict) -> int:
  """Returns the mlp_dim with which `standard` has the parameters of `gated_residual`.

  It is a multiple of 8, and the biases of the MLP are left out.
  """
  options, width = model.residual.gated_residual, model.d_model
  streams = options.num_streams
  sites = 1 + (not model.parallel) + (model.short_swa.window > 0)
  reads = model.num_layers * sites + 1  # with the last one
  rank = options.rank or max(1, width // 8)
  gains = 1 if options.shared_gain else streams
  own = reads * (2 * streams * rank + gains) + (reads - 1) * streams**2
  norms = model.num_layers * (sites + model.parallel) + 1
  norms *= 1 + (model.norm == "layernorm" and model.bias == "all")
  per_unit = model.num_layers * (3 if model.mlp in ("swiglu", "geglu") else 2)
  return 8 * round((model.mlp_dim + (own - norms) / per_unit) / 8)
