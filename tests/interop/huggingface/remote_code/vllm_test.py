"""What vLLM's Transformers backend asks of a model, checked without vLLM.

It builds the model on the meta device, puts layers of its own in the place of norms and linear
maps (queries, keys and values as one where they read one input), allocates the parameters that are
left, and runs all sequences as one row, with a function for attention that knows layers by number.
See vllm/model_executor/models/transformers.
"""

import ast
import inspect
import textwrap

import numpy as np
import pytest

from resjax.interop.huggingface import remote_code
from tests.helpers import decoders
from tests.interop.huggingface.remote_code import folders
from tests.interop.huggingface.remote_code.cases import RESIDUALS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

SERVED = [case for case in RESIDUALS if not remote_code.vllm_obstacles(case.config)]


class Engine:
  """Runs the attention of layers by number: causal, within the sequences of a packed row."""

  def __init__(self, lengths):
    segment = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])
    self.same = (segment[:, None] == segment[None]) & torch.ones(2 * segment.shape).bool().tril()
    self.positions = torch.cat([torch.arange(n) for n in lengths])[None]
    self.instances, self.seen = object(), []

  def attention(self, module, query, key, value, mask, scaling=None, **kwargs):
    """Has the signature of vLLM's function; the result has no axis for rows, [T, H · C]."""
    assert kwargs["attention_instances"] is self.instances and mask is None
    assert query.shape[0] == 1 and query.shape[2] == len(self.same)
    self.seen.append(module.layer_idx)
    rest = {"scaling": scaling, "softcap": kwargs.get("softcap")}
    eager = inspect.getmodule(type(module)).eager_attention
    seen = self.same
    if window := kwargs.get("sliding_window"):
      seen = seen & torch.ones_like(seen).triu(1 - window)
    blocked = torch.where(seen, 0.0, -1e9)[None, None]
    out, _ = eager(module, query, key, value, blocked, **rest)
    return out.reshape(len(self.same), -1), None

  def run(self, model, tokens):
    transformers.AttentionInterface.register("engine", self.attention)
    with torch.no_grad():
      hidden = model(
        tokens, use_cache=False, position_ids=self.positions, return_dict=False,
        attention_instances=self.instances,
      )  # fmt: skip
    return hidden[0][0]


def on_meta(folder):
  """Builds the model of a folder with parameters on the meta device, and real buffers."""
  config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
  config._attn_implementation = "engine"
  register = torch.nn.Module.register_parameter

  def to_meta(module, name, parameter):
    register(module, name, parameter)
    if parameter is not None:
      module._parameters[name] = torch.nn.Parameter(parameter.to("meta"))

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(torch.nn.Module, "register_parameter", to_meta)
    transformers.AttentionInterface.register("engine", Engine([1]).attention)
    return transformers.AutoModel.from_config(config, trust_remote_code=True).eval()


class Linear(torch.nn.Linear):
  """Stands in for a linear map of the engine."""


def replaced(model):
  """Puts layers of the engine in their places, and says which were fused."""
  fused = set()
  for module in list(model.modules()):
    for name, child in list(module.named_children()):
      if type(child) is torch.nn.Linear:
        made = Linear(child.in_features, child.out_features, child.bias is not None, device="meta")
        setattr(module, name, made)
      elif type(child).__name__.endswith("RMSNorm"):
        setattr(module, name, torch.nn.RMSNorm(child.weight.shape, child.eps, device="meta"))
  for module in list(model.modules()):
    names = reads_one_input(type(module))
    if len(names) == 3:
      fuse(module, names)
      fused.add(type(module).__name__)
  return fused


def reads_one_input(cls):
  """Returns the linear maps, as _proj, that `forward` gives its first argument, each once."""
  if not cls.__module__.startswith("transformers_modules"):
    return []
  forward = inspect.unwrap(cls.forward)
  tree = ast.parse(textwrap.dedent(inspect.getsource(forward)))
  first = list(inspect.signature(forward).parameters)[1:2]
  attributes = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
  return [
    node.func.attr
    for node in ast.walk(tree)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    and node.func.attr.endswith("_proj") and attributes.count(node.func.attr) == 1
    and [getattr(arg, "id", None) for arg in node.args] == first
  ]  # fmt: skip


def fuse(module, names):
  """Replaces three linear maps by one, whose parts a hook hands to their callers."""
  parts = [getattr(module, name) for name in names]
  sizes = [part.out_features for part in parts]
  module.fused = torch.nn.ModuleDict(zip(names, parts, strict=True))
  for name in names:
    delattr(module, name)
  for index, name in enumerate(names):

    def call(x, index=index):
      whole = torch.cat([part(x) for part in module.fused.values()], -1)
      return whole.split(sizes, -1)[index]

    object.__setattr__(module, name, call)


def loaded(model, tensors):
  """Allocates what is on the meta device and fills it from the tensors of a file."""
  for name in model.state_dict():
    holder, _, leaf = name.rpartition(".")
    stored = tensors.pop("model." + name.replace(".fused.", "."))
    value = torch.nn.Parameter(stored.clone())
    setattr(model.get_submodule(holder), leaf, value)
  assert set(tensors) <= {"lm_head.weight"}
  return model


@pytest.mark.parametrize("case", SERVED, ids=str)
def test_what_the_backend_does(case, tmp_path):
  decoder = case.write(tmp_path / "model")
  reference = folders.model(tmp_path / "model")
  model = on_meta(tmp_path / "model")
  assert all(p.is_meta for p in model.parameters())
  assert model.is_backend_compatible() and not model.supports_pp_plan
  config = model.config
  assert len(model.layers) == config.num_hidden_layers == len(config.layer_types)
  fused = replaced(model)
  assert fused == ({"Attention"} if config.attention_views == ["x"] else set())
  model = loaded(model, dict(reference.state_dict()))
  lengths = (7, 5)
  tokens = torch.tensor(np.asarray(decoders.tokens(decoder.config, 1, sum(lengths))))
  engine = Engine(lengths)
  got = engine.run(model, tokens)
  assert engine.seen == list(range(config.num_hidden_layers))
  with torch.no_grad():
    want = [reference.model(row)[0][0] for row in tokens.split(lengths, 1)]
  np.testing.assert_allclose(got, torch.cat(want), rtol=0, atol=3e-5)


@pytest.mark.parametrize("case", SERVED, ids=str)
def test_names_of_the_plan_are_those_of_linear_maps(case, tmp_path):
  case.write(tmp_path / "model")
  model = on_meta(tmp_path / "model")
  linear = {
    name.replace(name.split(".")[1], "*", 1)
    for name, module in model.named_modules()
    if isinstance(module, torch.nn.Linear)
  }
  plan = type(model.config).base_model_tp_plan
  assert linear <= set(plan)
  assert all(plan[name] == "rowwise" for name in linear if name.endswith(("o_proj", "down_proj")))
