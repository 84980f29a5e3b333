"""Who has to see an op. Where nobody has, a backend is called at once: the dispatcher takes longer than a short attention."""

import torch
from torch import Tensor
from torch.autograd import forward_ad


def unwatched(*tensors: Tensor) -> bool:
    """Whether these are plain tensors on the CPU that no autograd, compiler, tracer, transform or mode follows."""
    if torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None:
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() or forward_ad._current_level >= 0:
        return False
    graded = torch.is_grad_enabled()
    for x in tensors:
        if not (type(x) is Tensor or type(x) is torch.nn.Parameter) or (graded and x.requires_grad):
            return False
        # the dispatcher would resolve a pending negation, and say that it knows no such layout
        if not x.is_cpu or x.is_neg() or x.layout is not torch.strided:
            return False
    return True
