"""Tensors that say they are on a GPU, and counts of the moments at which the host waits for it."""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

aten = torch.ops.aten
#: The device of the tensors: torch calls the driver for tensors on "cuda"
GPU = torch.device("meta")


class GPUTensor(torch.Tensor):
    """A tensor on the CPU whose device is ``GPU``."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=GPU,
            requires_grad=inner.requires_grad,
        )

    def __init__(self, inner):
        self.inner = inner.detach()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        with PretendGPU.current:
            return func(*args, **(kwargs or {}))

    def __repr__(self):
        return f"GPUTensor({self.inner})"


class PretendGPU(TorchDispatchMode):
    """Runs kernels of ``GPU`` on the CPU.

    ``waits`` counts blocking copies to and from the GPU, numbers read by the host, and operations
    whose output size depends on the data.
    """

    current = None

    def __init__(self):
        super().__init__()
        self.waits = Counter()
        PretendGPU.current = self

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = []
        tree_map(lambda x: tensors.append(x) if isinstance(x, torch.Tensor) else None, args)
        tree_map(lambda x: tensors.append(x) if isinstance(x, torch.Tensor) else None, kwargs)
        on_gpu = any(isinstance(x, GPUTensor) for x in tensors)
        device = kwargs.get("device")
        target = on_gpu if device is None else torch.device(device) == GPU
        name = func.overloadpacket.__name__
        if name == "copy_":
            sources = [isinstance(x, GPUTensor) for x in args[:2]]
            self._count(name, sources[0] != sources[1] and not (len(args) > 2 and args[2]))
        elif name == "_to_copy":
            self._count(name, target != on_gpu and not kwargs.get("non_blocking"))
        elif on_gpu:
            mixed = [x for x in tensors if x.ndim and not isinstance(x, GPUTensor)]
            is_index = name in ("index", "index_put", "index_put_")
            assert is_index or not mixed, f"{func} has tensors on both devices"
            masks = is_index and any(
                x is not None and x.dtype == torch.bool for x in args[1] if x is not None
            )
            waits = name in ("_local_scalar_dense", "nonzero", "masked_select") or masks or mixed
            self._count(name, bool(waits))

        def unwrap(x):
            if isinstance(x, GPUTensor):
                return x.inner
            return torch.device("cpu") if isinstance(x, torch.device) else x

        out = func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs))
        is_in_place = name.endswith("_") or "out" in kwargs
        if is_in_place and isinstance(args[0], torch.Tensor):
            return args[0]
        return tree_map(
            lambda x: GPUTensor(x) if target and isinstance(x, torch.Tensor) else x, out
        )

    def _count(self, name, waits):
        if waits:
            self.waits[name] += 1


def to_pretend_gpu(module):
    """Move the parameters and buffers of a module."""
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                wrapped = GPUTensor(weight.data)
                part._parameters[name] = torch.nn.Parameter(wrapped, weight.requires_grad)
        for name, value in part._buffers.items():
            if value is not None:
                part._buffers[name] = GPUTensor(value)
    return module
