"""SmolLM3, some layers of which do not rotate queries and keys."""

from typing import Any

from resjax.interop.huggingface import rope_settings as ropes
from resjax.interop.huggingface.families import llama
from resjax.interop.huggingface.families.family import Family
from resjax.interop.huggingface.settings import Settings
from resjax.models import DecoderConfig, LayerRope


def _rotated_layers(settings: Settings) -> list[bool]:
  layers, interval = settings.take("num_hidden_layers"), settings.take("no_rope_layer_interval", 4)
  # In spite of its name, 1 stands for rotation.
  flags = settings.take("no_rope_layers", [(i + 1) % interval != 0 for i in range(layers)])
  if len(flags) < layers:
    raise settings.refusal("no_rope_layers", flags, f"one for each of {layers} layers")
  return [bool(flag) for flag in flags[:layers]]


def _windows(settings: Settings, rotated: list[bool]) -> tuple[int, ...]:
  slides = settings.take("use_sliding_window", False)
  settings.take("max_window_layers", None)  # also in published files, and not read
  size = settings.nullable("sliding_window", 0)
  if not slides and ropes.SLIDING in settings.take("layer_types", []):
    raise settings.refusal(
      "use_sliding_window", slides, f"True with {ropes.SLIDING} in layer_types"
    )
  return llama.read_windows(
    settings, size, [bool(slides and size) and not turns for turns in rotated]
  )


def _read(settings: Settings) -> dict[str, Any]:
  settings.expect("mlp_bias", False)
  llama.all_heads(settings)
  rotated, rope = _rotated_layers(settings), ropes.read_rope(settings, theta=2_000_000.0)
  turned = LayerRope(rope["rope_theta"], rope["rope_scaling"])
  return {
    **llama.read_layers(settings, tied=True),
    **ropes.rope_fields([turned if turns else LayerRope(0.0) for turns in rotated]),
    "windows": _windows(settings, rotated),
  }


def _write(config: DecoderConfig) -> dict[str, Any]:
  return {
    **llama.write_layers(config),
    **ropes.rope_settings(config),
    **llama.write_windows(config),
    "use_sliding_window": max(config.windows) > 0,
    "no_rope_layers": [int(rope is not None) for rope in config.layer_ropes],
    "mlp_bias": False,
  }


SMOLLM3 = Family(
  "smollm3", "SmolLM3ForCausalLM", _read, _write, llama.tensors(llama.NORMS), **llama.FILES
)
