"""Entries of config.json that bring a Fastmax model back as Fastmax, and refuse it where fastmax is missing.

`attn_implementation` is read by transformers itself. Without fastmax the name is unknown and raises. transformers
does not write it, so `written_entries` adds it to a config while that is saved.

`quantization_config` holds what `configure` set, layer by layer. It is transformers' one public way to change a model
between its construction and the loading of its weights: the loader registered under the method "fastmax" gives the
attention modules their parameters, so that the weights find their places. Nothing is quantized.
"""

from collections.abc import Iterator
from contextlib import contextmanager
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
        """Return the options of every configured module, by its name."""
        return {name: AttentionOptions.from_dict(x["options"]) for x in self.layers for name in x["modules"]}


class FastmaxLoader(HfQuantizer):
    """The hooks that transformers calls while it loads a model whose config has the entry."""

    requires_calibration = False
    quantization_config: FastmaxConfig

    def update_attn_implementation(self, config: PreTrainedConfig) -> PreTrainedConfig:
        """Take Fastmax unless the user asked for another implementation."""
        if config._attn_implementation is None:
            config._attn_implementation = METHOD
        return config

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **_: Any) -> None:
        if is_ours(model.config._attn_implementation):
            for name, options in self.quantization_config.options().items():
                give_parameters(model.get_submodule(name), options)

    def postprocess_model(self, model: PreTrainedModel, **_: Any) -> PreTrainedModel:
        """Restore the model as it was before it was saved: not quantized, and with the options in its config."""
        self.remove_quantization_config(model)  # type: ignore[no-untyped-call]
        keep_options(model)
        return model

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return True


def give_parameters(module: nn.Module, options: AttentionOptions) -> None:
    """Put the child with the options and new parameters into an attention module, on its device and in its dtype."""
    like = next(module.parameters())
    child = AttentionParameters(options, heads_of(module), device=like.device, dtype=like.dtype)
    module.add_module(CHILD, child.train(module.training))


def is_ours(name: object) -> bool:
    return isinstance(name, str) and name.startswith(METHOD)


def keep_options(model: PreTrainedModel) -> None:
    """Write the options of all configured modules into the config of their model."""
    layers = _layers(model)
    if layers and not has_other_quantization(model.config):
        model.config.quantization_config = FastmaxConfig(layers=layers).to_dict()


@contextmanager
def written_entries(config: PreTrainedConfig) -> Iterator[None]:
    """Make the entries of a config agree with the attention that it asks for, while it is written to a file.

    A Fastmax config gets `attn_implementation`. One that was switched back to softmax goes without the options.
    """
    values = vars(config)
    if is_ours(config._attn_implementation):
        added, removed = {"attn_implementation": config._attn_implementation}, {}
    else:
        entry = values.get("quantization_config")
        added, removed = {}, {"quantization_config": entry} if _method(entry) == METHOD else {}
    values.update(added)
    for name in removed:
        del values[name]
    try:
        yield
    finally:
        for name in added:
            del values[name]
        values.update(removed)


def check_not_configured(config: PreTrainedConfig) -> None:
    """Refuse to run a module without options where the config has options for its model."""
    if _method(getattr(config, "quantization_config", None)) == METHOD:
        raise ValueError(
            "the config says how the attention of this model was configured, but its modules are new: load the model with "
            "from_pretrained, or call fastmax.integrations.transformers.configure(model, ...)"
        )


def has_other_quantization(config: PreTrainedConfig) -> bool:
    entry = getattr(config, "quantization_config", None)
    return entry is not None and _method(entry) != METHOD


def _method(entry: Any) -> Any:
    return entry.get("quant_method") if isinstance(entry, dict) else getattr(entry, "quant_method", None)


def _layers(model: nn.Module) -> list[dict[str, Any]]:
    """Group the names of configured modules by equal options."""
    found: dict[AttentionOptions, list[str]] = {}
    for name, module in model.named_modules():
        child = parameters_of(module)
        if child is not None:
            found.setdefault(child.options, []).append(name)
    return [{"options": options.to_dict(), "modules": names} for options, names in found.items()]
