"""How a saved model remembers that it is Fastmax, and how it is refused where fastmax is missing.

Two entries of config.json do it. `attn_implementation` is read by transformers itself: without fastmax it does not know
the name and raises. `quantization_config` is transformers' one public way to change a model between its construction and
the loading of its weights: registered under the method "fastmax", it gives the attention modules their parameters, so
that the weights find their places. Nothing is quantized, and once loaded the model does not say that it is.
"""

from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from fastmax.integrations.transformers.modules import heads_of
from fastmax.integrations.transformers.options import CHILD, AttentionOptions, AttentionParameters, parameters_of

METHOD = "fastmax"
VERSION = 1


class FastmaxConfig(QuantizationConfigMixin):
    """The entry of config.json: options, each with the names of the modules that have them."""

    def __init__(
        self, quant_method: str = METHOD, version: int = VERSION, layers: list[dict[str, Any]] | None = None
    ) -> None:
        if version != VERSION:
            raise ValueError(f"this model was saved for version {version} of fastmax's entry, this is {VERSION}")
        self.quant_method = quant_method  # type: ignore[assignment]  # a method of our own
        self.version = version
        self.layers = layers or []

    def options(self) -> dict[str, AttentionOptions]:
        """Of every module that was configured, by its name."""
        return {name: AttentionOptions.from_dict(x["options"]) for x in self.layers for name in x["modules"]}


class FastmaxLoader(HfQuantizer):
    """What transformers calls while it loads a model whose config has the entry."""

    requires_calibration = False
    quantization_config: FastmaxConfig

    def update_attn_implementation(self, config: PreTrainedConfig) -> PreTrainedConfig:
        """It is called for what the user asked for: nothing means what the model was saved with."""
        if config._attn_implementation is None:
            config._attn_implementation = METHOD
        return config

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **_: Any) -> None:
        if is_ours(model.config._attn_implementation):
            for name, options in self.quantization_config.options().items():
                give_parameters(model.get_submodule(name), options)

    def postprocess_model(self, model: PreTrainedModel, **_: Any) -> PreTrainedModel:
        """The model is as it was before it was saved: not quantized, and with the entry in its config."""
        self.remove_quantization_config(model)  # type: ignore[no-untyped-call]
        mark(model.config, model)
        return model

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return True


def give_parameters(module: nn.Module, options: AttentionOptions) -> None:
    """Put the child with the options and new parameters into an attention module, on its device and in its dtype."""
    like = next(module.parameters())
    heads = heads_of(module)
    child = AttentionParameters(
        options,
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
        value_dim=heads.value_dim,
        device=like.device,
        dtype=like.dtype,
    )
    module.add_module(CHILD, child.train(module.training))


def is_ours(name: object) -> bool:
    return isinstance(name, str) and name.startswith(METHOD)


def mark(config: PreTrainedConfig, model: nn.Module | None = None) -> None:
    """Write both entries, so that saving the config saves them; of a model also what its modules were configured to."""
    if not is_ours(config._attn_implementation):
        return
    config.attn_implementation = config._attn_implementation
    entry = getattr(config, "quantization_config", None)
    if entry is None or _method(entry) == METHOD:
        config.quantization_config = FastmaxConfig(layers=_layers(model)).to_dict()


def begin(config: PreTrainedConfig) -> None:
    """A module that was not configured runs: mark its config, unless that says that every module was configured."""
    if getattr(config, "attn_implementation", None) != config._attn_implementation:
        mark(config)
    entry = getattr(config, "quantization_config", None)
    if isinstance(entry, dict) and entry.get("quant_method") == METHOD and entry["layers"]:
        raise ValueError(
            "the config says how the attention of this model was configured, but its modules are new: load the model with "
            "from_pretrained, or call fastmax.integrations.transformers.configure(model, ...)"
        )


def has_other_quantization(config: PreTrainedConfig) -> bool:
    entry = getattr(config, "quantization_config", None)
    return entry is not None and _method(entry) != METHOD


def _method(entry: Any) -> Any:
    return entry.get("quant_method") if isinstance(entry, dict) else getattr(entry, "quant_method", None)


def _layers(model: nn.Module | None) -> list[dict[str, Any]]:
    """Modules with equal options together."""
    found: dict[AttentionOptions, list[str]] = {}
    for name, module in () if model is None else model.named_modules():
        child = parameters_of(module)
        if child is not None:
            found.setdefault(child.options, []).append(name)
    return [{"options": options.to_dict(), "modules": names} for options, names in found.items()]
