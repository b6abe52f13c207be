"""How data flow through one sublayer of every residual system, as SVG."""

import dataclasses
import html

_ROW, _BOX, _WIDTH = 34, 26, 368  # heights of a row and a box, the width of a picture: pixels
_STATE, _LINE = 136, 20  # the width of a part of the state, and where the line is that carries it
_BRANCH, _BRANCH_WIDTH = 190, 174  # where the column of the branch begins, and its width
_MIDDLE = _BRANCH + _BRANCH_WIDTH // 2
_STYLE = "max-width:100%;font:13px system-ui,sans-serif"


@dataclasses.dataclass(frozen=True)
class Flow:
  """What one sublayer does with the depth state.

  Attributes:
    before: the parts of the state that it finds.
    after: the parts that it leaves; a star marks what is new or changed.
    read: how a view is made of the parts.
    write: how the output of the branch joins the state.
    carry: what happens to the state on its way past the branch.
    views: what the branch reads, one line each.
    norm: whether the model normalises what the branch reads.
  """

  before: tuple[str, ...] = ("x",)
  after: tuple[str, ...] = ("x*",)
  read: str = "x"
  write: str = "+"
  carry: str = ""
  views: tuple[str, ...] = ("x",)
  norm: bool = True


_SOURCES = ("v₀ = embedding", "v₁", "…", "vᵢ")
_GROWN = (*_SOURCES, "vᵢ₊₁ = f*")
_BLOCKS = ("b₀ = embedding", "b₁", "…", "running sum")
_BLOCKS_AFTER = (*_BLOCKS[:-1], "running sum + f*")
_STREAMS = ("H₁", "H₂", "…", "H_R")
_CHANGED = ("H₁*", "H₂*", "…", "H_R*")
_LAYERS = ("embedding", "layer 1", "…", "layer i")
_LAYERS_AFTER = (*_LAYERS, "layer i+1*")
_MATCHED = ("x", "v₀ = embedding", "v₁", "…")
_MATCHED_AFTER = ("x + f*", *_MATCHED[1:], "vᵢ₊₁ = f*")

FLOWS = {
  "standard": Flow(),
  "attenuation": Flow(carry="× α at chosen layers"),
  "rezero": Flow(write="+ α f"),
  "layerscale": Flow(write="+ λ ⊙ f"),
  "deepnorm": Flow(carry="× α", write="+, then LN", norm=False),
  "keel": Flow(carry="× α", write="+, then RMS"),
  "lns": Flow(read="norm(x) / √ℓ", norm=False),
  "x0_residual": Flow(("x", "x₀"), ("x*", "x₀"), read="λ x + μ x₀"),
  "unet_skips": Flow(("x", "mirrored x"), ("x*", "mirrored x"), read="x + w · mirrored"),
  "laurel": Flow(
    ("x", "earlier x"), ("x*", "earlier x"), carry="β x + low-rank maps", write="+ α f"
  ),
  "gemma3n_laurel": Flow(carry="x + low-rank map", write="+ f, / √2"),
  "gate": Flow(carry="× α (learned)"),
  "highway": Flow(carry="× (1 − g)", write="+ g f"),
  "deep_delta": Flow(("X [D, m]",), ("X*",), read="compress", carry="− β k kᵀ X", write="+ β k vᵀ"),
  "hyper_connections": Flow(_STREAMS, _CHANGED, "Σ αᵣ Hᵣ", "+ βᵣ f", "mix [R, R]"),
  "mhc": Flow(_STREAMS, _CHANGED, "Σ αᵣ Hᵣ", "+ βᵣ f", "doubly stochastic mix"),
  "mhc_lite": Flow(_STREAMS, _CHANGED, "Σ αᵣ Hᵣ", "+ βᵣ f", "mix of permutations"),
  "independent_hc": Flow(_STREAMS, _CHANGED, "Σ αᵣ Hᵣ", "+ βᵣ f", "not mixed"),
  "wide_residual": Flow(_STREAMS, _CHANGED, "Σ rᵣ Hᵣ", "+ wᵣ f", "not mixed"),
  "siamese_norm": Flow(("x", "y"), ("x*", "y*"), "N(x) + N(y)", "+ f, in x / √(2ℓ)", "N(x), y"),
  "gated_residual": Flow(_STREAMS, _CHANGED, "mean of G ⊙ norm(Hᵣ)", "+ gᵣ f", norm=False),
  "multi_gate": Flow(_STREAMS, _CHANGED, "attention", "+ gᵣ f", "× (1 − gᵣ)"),
  "attn_res": Flow(_SOURCES, _GROWN, "depth attention", "append", "kept"),
  "block_attn_res": Flow(_BLOCKS, _BLOCKS_AFTER, "depth attention", "add to the sum", "kept"),
  "delta_attn_res": Flow(_MATCHED, _MATCHED_AFTER, "x + depth attention", "+, append", "kept"),
  "delta_block_attn_res": Flow(
    ("x", *_BLOCKS), ("x + f*", *_BLOCKS_AFTER), "x + depth attention", "+", "kept"
  ),
  "delta_ablation": Flow(
    ("x", "v₁", "…", "vᵢ"),
    ("x + f*", "v₁", "…", "vᵢ", "vᵢ₊₁ = f*"),
    "x + depth attention",
    "+, append",
    "kept",
  ),
  "depth_attention": Flow(
    ("x", "layer i−W", "…", "layer i"),
    ("x + f*", "layer i−W", "…", "layer i*"),
    "x + projected attention",
    "+",
    "kept",
  ),
  "denseformer": Flow(_LAYERS, _LAYERS_AFTER, "learned average", "append", "kept"),
  "elc": Flow(_LAYERS, _LAYERS_AFTER, "softmax-weighted mix", "append", "kept"),
  "deep_cross_attention": Flow(
    _LAYERS, _LAYERS_AFTER, "a mix for each", "append", "kept", ("q", "k", "v", "x")
  ),
  "muddformer": Flow(
    _LAYERS, _LAYERS_AFTER, "a mix per token for each", "append", "kept", ("q", "k", "v", "x")
  ),
}


def svg(name: str) -> str:
  """Returns the picture of a system: the state above and below, the branch beside what is carried.

  It is as wide as a telephone shows whole.
  """
  flow = FLOWS[name]
  top = len(flow.before) * _ROW  # where the state that is found ends
  read = top + _ROW
  norm = read + 52
  branch = norm + 46 if flow.norm else read + 60
  bottom = branch + _ROW + 4  # where the state that is left begins
  start, end = read + _BOX // 2, (norm if flow.norm else branch) - _BOX // 2
  parts = [
    *_column(flow.before, 0),
    _arrow(f"M{_LINE},{top - 4} V{branch - _BOX // 2}"),
    _text(_LINE + 10, (read + branch) // 2 + 4, flow.carry, "start"),
    _arrow(f"M{_LINE},{read} H{_BRANCH}"),
    _box(_BRANCH, read, _BRANCH_WIDTH, flow.read),
    *(_arrow(f"M{x},{start} V{end}") for x in _spread(len(flow.views), 7, _MIDDLE)),
    *([_text(_MIDDLE + 18, end - 9, ", ".join(flow.views), "start")] * (len(flow.views) > 1)),
    _box(_MIDDLE - 45, branch, 90, "branch f"),
    _arrow(f"M{_MIDDLE - 45},{branch} H{_STATE + 4}"),
    _box(4, branch, _STATE, flow.write),
    _arrow(f"M{_LINE},{branch + _BOX // 2} V{bottom + 4}"),
    *_column(flow.after, bottom),
  ]
  if flow.norm:
    parts += [
      _box(_MIDDLE - 45, norm, 90, "norm"),
      _arrow(f"M{_MIDDLE},{norm + 13} V{branch - 13}"),
    ]
  height = bottom + len(flow.after) * _ROW
  what = f"Data flow of {name}: {flow.read}; {flow.carry or 'unchanged'}; {flow.write}"
  return (
    f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img" style="{_STYLE}" '
    f'aria-label="{html.escape(what)}"><defs><marker id="head" viewBox="0 0 6 6" refX="6" refY="3" '
    f'markerWidth="7" markerHeight="7" orient="auto"><path d="M0,0 L6,3 L0,6 z" '
    f'fill="currentColor"/></marker></defs>{"".join(parts)}</svg>'
  )


def _spread(count, step, middle):
  return [middle + (i - (count - 1) / 2) * step for i in range(count)]


def _column(names, top):
  """Yields the parts of a state, one below the other; a star marks what is new or changed."""
  for row, name in enumerate(names):
    y = top + row * _ROW + _ROW // 2
    if name == "…":
      yield _text(4 + _STATE / 2, y + 4, name)
    else:
      yield _box(4, y, _STATE, name.removesuffix("*"), is_new=name.endswith("*"))


def _box(x, middle, width, text, is_new=False):
  fill = "#4c8bf5" if is_new else "none"
  return (
    f'<rect x="{x}" y="{middle - _BOX / 2}" width="{width}" height="{_BOX}" rx="5" fill="{fill}" '
    f'fill-opacity="0.3" stroke="currentColor"/>' + _text(x + width / 2, middle + 4, text)
  )


def _arrow(path):
  return f'<path d="{path}" fill="none" stroke="currentColor" marker-end="url(#head)"/>'


def _text(x, y, text, anchor="middle"):
  text = html.escape(text)
  return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="currentColor">{text}</text>'
