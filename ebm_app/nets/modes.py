"""Modules in evaluation mode, without a change of the mode of the original."""

from types import MethodType
from typing import TypeVar

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ebm_app.utils.errors import UserError

M = TypeVar("M", bound=nn.Module)


def in_evaluation_mode(module: M) -> M:
    """Return a module, or its ``evaluation_copy`` if it or one of its submodules is in training
    mode. Results of the returned module never depend on the mode, also while other threads use
    ``module``.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    >>> in_evaluation_mode(net).training, net.training, in_evaluation_mode(net.eval()) is net
    (False, True, True)
    """
    is_training = any(submodule.training for submodule in module.modules())
    return evaluation_copy(module) if is_training else module


def evaluation_copy(net: nn.Module) -> nn.Module:
    """Return a copy of a module tree in evaluation mode that shares all parameters and buffers, so
    that the modes of ``net`` never change, also while other threads use it. Weights that change
    later change in both. ``DataParallel`` and compiled modules are replaced by their module.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    >>> other = evaluation_copy(net)
    >>> other[1].training, net[1].training, other[0].weight is net[0].weight
    (False, True, True)

    Raises:
        UserError: for a TorchScript module, whose mode is not an attribute of Python.
    """
    copies: dict[nn.Module, nn.Module] = {}

    def copy_of(module: nn.Module) -> nn.Module:
        module = unwrapped(module)
        if module in copies:
            return copies[module]
        if isinstance(module, torch.jit.ScriptModule):
            raise UserError(
                "A TorchScript network cannot be copied in evaluation mode. Call its eval(), and "
                "pass a function: lambda x, time: net(x, time)."
            )
        # copy.copy calls __getstate__, which modules with parametrisations refuse
        other = copies[module] = object.__new__(type(module))
        for name, value in vars(module).items():
            if isinstance(value, MethodType) and value.__self__ is module:
                value = MethodType(value.__func__, other)  # a method replaced on the instance
            other.__dict__[name] = value
        # drop the compiled call, which depends on the mode of the original
        other.__dict__.update(training=False, _compiled_call_impl=None)
        other.__dict__["_modules"] = {
            name: None if child is None else copy_of(child)
            for name, child in module._modules.items()
        }
        return other

    return copy_of(net)


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module in wrappers of torch for several devices or compilation."""
    while True:
        if isinstance(module, DataParallel | DistributedDataParallel):
            module = module.module
        elif isinstance(module, torch._dynamo.OptimizedModule):
            module = module._orig_mod
        else:
            return module
