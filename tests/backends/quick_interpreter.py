"""Makes Triton's interpreter several times faster, with the same bits. For tests alone; the kernels are not touched.

Nearly all of its time goes into Python around small arrays: in triton 3.7.1 it patches the language at every call of a device
function, looks for overflow of integers with an assertion that is off, and finds types and shapes anew for every operation.
Here the language is patched once, and what depends on types alone is remembered by their names.
"""

import math
from dataclasses import replace
from typing import Any

import triton.language as tl
from triton.language import core
from triton.runtime import interpreter

_builder, _semantic = interpreter.interpreter_builder, interpreter.interpreter_semantic


def install() -> None:
    """For the rest of this process."""
    _patch_the_language_once()
    _remember_types()
    _remember_type_checks()
    # it ends in device_assert, which does nothing unless debug is on
    assert not _builder.options.debug
    _builder.options = replace(_builder.options, sanitize_overflow=False)


def _patch_the_language_once() -> None:
    def bound(member: Any) -> Any:
        # `builtin` only asks whether there is a semantic
        own = member.__wrapped__ if hasattr(member, "__wrapped__") else member

        def call(*args: Any, **named: Any) -> Any:
            named["_semantic"] = _semantic
            return own(*args, **named)

        return call

    def patch_attr(found_in: Any, name: str, member: Any, _builder: Any, scope: Any) -> None:
        scope.set_attr(found_in, name, bound(member))

    interpreter._patch_attr = patch_attr
    scope = interpreter._LangPatchScope()
    for language in (tl, core):
        for part in (language, language.tensor, tl.math):
            interpreter._patch_builtin(part, _builder, scope)
        interpreter._patch_lang_tensor(language.tensor, scope)
        interpreter._patch_lang_core(language, scope)
    interpreter._patch_builtin(core.tensor_descriptor_base, _builder, scope)
    nothing = interpreter._LangPatchScope()
    interpreter._patch_lang = lambda _: nothing


def _remember_types() -> None:
    """Block types, the shapes of tensors, and numpy's types, each made once."""
    init, np_dtype, unwrap = core.block_type.__init__, interpreter._get_np_dtype, core._unwrap_if_constexpr
    types: dict[Any, Any] = {}
    shapes: dict[str, Any] = {}
    np_dtypes: dict[str, Any] = {}

    def unwrapped(x: Any) -> Any:
        return unwrap(x) if isinstance(x, (core.constexpr, list, tuple, core.tuple)) else x

    def new(cls: Any, element: Any, shape: Any) -> Any:
        key = element.name, *map(unwrapped, shape)
        if key not in types:
            types[key] = object.__new__(cls)
            init(types[key], element, shape)
        return types[key]

    def tensor_init(self: Any, handle: Any, kind: Any) -> None:
        self.handle, self.type, self.dtype = handle, kind, kind.scalar
        name = kind.name
        if name not in shapes:
            shape = tuple(kind.shape) if kind.is_block() else ()
            shapes[name] = core.tuple([core.constexpr(n) for n in shape]), core.constexpr(math.prod(shape))
        self.shape, self.numel = shapes[name]

    def numpys(kind: Any) -> Any:
        name = kind.name
        if name not in np_dtypes:
            np_dtypes[name] = np_dtype(kind)
        return np_dtypes[name]

    core.block_type.__new__, core.block_type.__init__ = new, lambda *_: None
    core.tensor.__init__ = tensor_init
    core._unwrap_if_constexpr = tl._unwrap_if_constexpr = unwrapped
    interpreter._get_np_dtype = numpys


def _remember_type_checks() -> None:
    """Cache the dtypes to which an operation casts two tensors; numpy broadcasts them."""
    semantic = type(_semantic)
    check = semantic.binary_op_type_checking_impl
    found: dict[Any, Any] = {}

    def to(self: Any, x: Any, kind: Any) -> Any:
        if x.type is kind:
            return x
        if x.dtype != kind.scalar:
            x = self.cast(x, kind.scalar)
        return x if x.type is kind else core.tensor(x.handle, kind)

    def remembered(self: Any, left: Any, right: Any, *flags: bool) -> Any:
        key: tuple[Any, ...]
        if type(left) is not core.tensor:
            return check(self, left, right, *flags)
        if type(right) is core.tensor:
            key = left.type.name, right.type.name, flags
            if key not in found:
                found[key] = [x.type for x in check(self, left, right, *flags)]
            kinds = found[key]
            return to(self, left, kinds[0]), to(self, right, kinds[1])
        key = left.type.name, type(right), right, math.copysign(1, right), flags  # -0.0 == 0.0
        if key not in found:
            x, number = check(self, left, right, *flags)
            found[key] = x.type, number
        kind, number = found[key]
        return to(self, left, kind), number

    semantic.binary_op_type_checking_impl = remembered
