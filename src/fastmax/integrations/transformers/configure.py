"""configure: Fastmax in the attention modules of an existing model, layer by layer."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from transformers import PreTrainedModel

from fastmax.integrations.transformers import persistence
from fastmax.integrations.transformers.modules import attention_modules, has_window, heads_of, is_cross, is_rotary
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
    qk_head_dim: int | None = None,
    windows: Mapping[str, int] | None = None,
    dropout_mode: str = "quadratic",
    backend: str = "auto",
    layers: str | Iterable[str] | None = None,
) -> tuple[str, ...]:
    """Switch `model` to Fastmax with these options, which are saved with it. Weights stay as they are.

    Each attention module gets a child `fastmax` with its options and, if it learns any, its parameters: make the optimizer
    after this. A module that has the same options already keeps its parameters. With other options it gets new ones.

    Layers that have a sliding window by the model's config keep softmax in it, without such a child.

    Args:
        model: of any architecture that uses transformers' attention interface; changed in place.
        order: this and all options that are not named here are those of `FastmaxAttention`.
        normalize: default "rms" in modules that apply rotary positions, which it commutes with, True in others.
        scale: default 1 / sqrt(D), 1 / D for odd orders (with normalize=False the module's own).
        decay: "gated" by a linear map of the token's values. Cross attention never decays.
        qk_head_dim: channels to which a learned projection takes each head's queries and keys, after their rotation. The
            state is then of C(qk_head_dim + order, order) features: 15 times smaller for 128 -> 32 at order 2. Train the
            model afterwards, as after any change.
        windows: layers that keep softmax, by name or pattern, with the number of the last tokens that they see.
        layers: the layers that get Fastmax with these options: a name as `attention_modules` lists them, a pattern like
            "model.layers.[02].*" (`*` matches dots too), or several of these. Default: all but those with a window.
            Layers that neither this nor `windows` chooses keep the options of an earlier call, or get the defaults.

    Returns:
        The names of the modules that run Fastmax with these options.

    Raises:
        ValueError: an option makes no sense, no layer has such a name, or the model has no layer that Fastmax could run in.

    Example:
        >>> configure(model, decay="gated", windows={"model.layers.*[13579].self_attn": 64})  # every second layer softmax
        ('model.layers.0.self_attn',)
    """
    register()
    modules = dict(attention_modules(model))
    if not modules:
        raise ValueError(
            f"{type(model).__name__} has no module that uses transformers' attention interface: Fastmax cannot be put there"
        )
    free = [name for name, module in modules.items() if not has_window(module)]
    if not free:
        raise ValueError(
            f"all attention layers of {type(model).__name__} have a sliding window by the model's config, in which they keep "
            "softmax: set config.sliding_window to None before you make the model"
        )
    windowed = {name: size for pattern, size in (windows or {}).items() for name in _matching(pattern, free, modules)}
    if layers is None:
        chosen = tuple(name for name in free if name not in windowed)
    else:
        patterns = [layers] if isinstance(layers, str) else layers
        chosen = tuple(dict.fromkeys(name for pattern in patterns for name in _matching(pattern, free, modules)))
    both = [name for name in chosen if name in windowed]
    if both:
        raise ValueError(f"{both[0]} is named by both layers and windows: it can run Fastmax or softmax")
    if persistence.has_other_quantization(model.config):
        raise ValueError(
            "a quantized model cannot be configured: its config.json has no place for what has to be saved"
        )
    options = {}
    for name in free:
        own, before = "rms" if is_rotary(type(modules[name])) else True, parameters_of(modules[name])
        if name in chosen:
            # the keys of another sequence have no distance to fade with
            fading = None if is_cross(name, modules[name]) else decay
            options[name] = AttentionOptions(
                order, own if normalize is None else normalize, scale, learn_scale, fading, (memory[0], memory[1]), None,
                dropout_mode, backend, qk_head_dim,
            )  # fmt: skip
            head_dim = heads_of(modules[name]).head_dim
            if qk_head_dim is not None and qk_head_dim > head_dim:
                raise ValueError(f"qk_head_dim must be at most the {head_dim} channels of {name}, got {qk_head_dim}")
        elif name in windowed:
            options[name] = AttentionOptions(normalize=own, window=windowed[name])
        else:
            options[name] = AttentionOptions(normalize=own) if before is None else before.options
    model.set_attn_implementation("fastmax")
    for name, asked in options.items():
        before = parameters_of(modules[name])
        if before is None or before.options != asked:
            persistence.give_parameters(modules[name], asked)
    persistence.keep_options(model)
    return chosen


def _matching(pattern: str, free: list[str], modules: Mapping[str, object]) -> list[str]:
    """Return the names that a pattern stands for."""
    found = [name for name in free if fnmatchcase(name, pattern)]
    if not found and pattern in modules:
        raise ValueError(
            f"{pattern} has a sliding window by the model's config, in which it keeps softmax: change the config instead"
        )
    if not found:
        raise ValueError(f"no attention module is called {pattern!r}; there are {', '.join(free)}")
    return found
