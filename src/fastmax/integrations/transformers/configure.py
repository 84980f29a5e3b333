"""configure: Fastmax in the attention modules of a model that is there already, layer by layer."""

from collections.abc import Iterable

from transformers import PreTrainedModel

from fastmax.integrations.transformers import persistence
from fastmax.integrations.transformers.modules import attention_modules, is_rotary
from fastmax.integrations.transformers.options import AttentionOptions, parameters_of
from fastmax.integrations.transformers.register import register
from fastmax.nn.gate import MEMORY


def configure(
    model: PreTrainedModel,
    order: int = 2,
    *,
    normalize: bool | str | None = None,
    scale: float | None = None,
    learn_scale: bool = False,
    decay: str | None = None,
    memory: tuple[float, float] = MEMORY,
    window: int | None = None,
    dropout_mode: str = "quadratic",
    backend: str = "auto",
    layers: Iterable[str] | None = None,
) -> tuple[str, ...]:
    """Switch `model` to Fastmax with these options, which are saved with it. Weights stay as they are.

    Each attention module gets a child `fastmax` with its options and, if it learns any, its parameters: make the optimizer
    after this. Where a module has them already with the same options, its parameters stay; with other ones they are new.

    Args:
        model: of any architecture that uses transformers' attention interface; changed in place.
        order: the degree of the polynomial, 1 to 4.
        normalize: True standardizes queries and keys, "rms" divides by their root mean square, False leaves them. Default:
            "rms" in modules that apply rotary positions, which it commutes with, True in others.
        scale: multiplies s = q̂ . k̂; default 1 / sqrt(D), 1 / D for odd orders (with normalize=False the module's own).
        learn_scale: learn one scale per query head, from `scale` on: `fastmax.head_scale`.
        decay: forget, in self attention: "gated" by what each token and head makes of the token's values, "learned" by one
            rate per head; a child module `fastmax.gate`.
        memory: where the decays start: head by head from a reach of 2^memory[0] tokens to one of 2^memory[1].
        window: keep softmax in these layers, over this many of the last tokens, instead of Fastmax.
        dropout_mode: as in `fastmax_attention`.
        backend: as in `fastmax_attention`.
        layers: names of the attention modules that these options are for; default: all. Others keep what they were told
            before, or get the defaults.

    Returns:
        The names of the modules that these options are for.
    """
    register()
    modules = dict(attention_modules(model))
    if not modules:
        raise ValueError(
            f"{type(model).__name__} has no module that uses transformers' attention interface: Fastmax cannot be put there"
        )
    chosen = tuple(modules) if layers is None else tuple(layers)
    unknown = [name for name in chosen if name not in modules]
    if unknown:
        raise ValueError(f"no attention module is called {unknown[0]!r}; there are {', '.join(modules)}")
    if persistence.has_other_quantization(model.config):
        raise ValueError(
            "a quantized model cannot be configured: its config.json has no place for what has to be saved"
        )
    model.set_attn_implementation("fastmax")
    for name, module in modules.items():
        own = "rms" if is_rotary(type(module)) else True
        before = parameters_of(module)
        if name in chosen:
            options = AttentionOptions(
                order, own if normalize is None else normalize, scale, learn_scale, decay, (memory[0], memory[1]), window,
                dropout_mode, backend,
            )  # fmt: skip
        else:
            options = AttentionOptions(normalize=own) if before is None else before.options
        if before is None or before.options != options:
            persistence.give_parameters(module, options)
    persistence.keep_options(model)
    return chosen
