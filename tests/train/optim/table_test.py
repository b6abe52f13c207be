import pytest

from resjax.train import optim
from tests.helpers.optimizers import config, parameters


@pytest.mark.parametrize(("name", "update"), [("adamw", "adam"), ("muon", "muon")])
def test_parameter_rows(name, update):
  c = config(name=name, combinator_lr_multiplier=3.0)
  assert optim.parameter_rows(parameters(), c, ["combinator/mix"]) == [
    ("combinator/mix/kernel", (4, 2), "adam", True, 3.0, 1.0),
    ("combinator/mixer/kernel", (4, 2), "adam", False, 3.0, 1.0),
    ("combinator/query", (3, 4), "adam", False, 3.0, 1.0),
    ("embed/embedding", (11, 4), "adam", True, 1.0, 1.0),
    ("layers/attention/q_proj/bias", (3, 8), "adam", False, 1.0, 1.0),
    ("layers/attention/q_proj/kernel", (3, 4, 8), update, True, 1.0, 1.0),
    ("layers/norm/scale", (3, 4), "adam", False, 1.0, 1.0),
    ("output/embedding", (11, 4), "adam", True, 1.0, 1.0),
  ]


def test_parameters_of_a_combinator_may_have_rates_of_their_own():
  c = config(combinator_lr_multiplier=3.0, combinator_lr_multipliers=("query=0.5", "mix=0"))
  rates = {row.path: row.lr_multiplier for row in optim.parameter_rows(parameters(), c)}
  assert {rates.pop(f"combinator/{name}") for name in ("query", "mix/kernel")} == {1.5, 0.0}
  assert rates.pop("combinator/mixer/kernel") == 3.0 and set(rates.values()) == {1.0}


def test_a_rate_for_a_parameter_that_is_not_there_is_refused():
  c = config(combinator_lr_multipliers=("kernel=0.5",))
  with pytest.raises(ValueError, match="has no parameter 'kernel'; allowed: mix/kernel, mixer/"):
    optim.parameter_rows(parameters(), c)


def test_parameters_of_a_combinator_are_decayed_only_by_name():
  rows = optim.parameter_rows(parameters(), config())
  assert not any(row.decayed for row in rows if "combinator" in row.path)


def test_column_has_the_structure_of_the_parameters():
  assert optim.column("decayed", parameters(), config(), ["combinator/query"]) == {
    "embed": {"embedding": True},
    "output": {"embedding": True},
    "layers": {"attention": {"q_proj": {"kernel": True, "bias": False}}, "norm": {"scale": False}},
    "combinator": {"query": True, "mix": {"kernel": False}, "mixer": {"kernel": False}},
  }


@pytest.mark.parametrize(
  ("name", "update", "multiplier"), [("adamw", "adam_layers", 0.25), ("muon", "muon", 0.5)]
)
def test_matrices_of_layers_learn_slower_in_a_wider_model(name, update, multiplier):
  c = config(name=name, combinator_lr_multiplier=3.0)
  rows = optim.parameter_rows(parameters(), c, (), optim.Scaling(width=4.0, depth=2.0))
  small = optim.parameter_rows(parameters(), c)
  kernel = "layers/attention/q_proj/kernel"
  changed = {row.path: row for row, other in zip(rows, small, strict=True) if row != other}
  assert changed == {
    "layers/attention/q_proj/bias": (
      "layers/attention/q_proj/bias",
      (3, 8),
      "adam_layers",
      False,
      1.0,
      1.0,
    ),
    kernel: (kernel, (3, 4, 8), update, True, 1.0, multiplier),
    "layers/norm/scale": ("layers/norm/scale", (3, 4), "adam_layers", False, 1.0, 1.0),
  }
