"""The same network in PyTorch: the peer that results and speed are held against (extra: peer)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from client.errors import MissingExtraError
from client.model import Model, Op, layers
from client.model.layers import pair

if TYPE_CHECKING:
    import torch


def twin(model: Model) -> torch.nn.Module:
    """``model`` as a ``torch.nn.Module`` whose ``state_dict`` has the same names and shapes.

    It takes float batches ``(N, *model.input.shape)``, already normalised, and gives the logits.
    Its parameters are PyTorch's own random ones. MissingExtraError without PyTorch.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "peer", "the same network in PyTorch") from None

    class Twin(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
        """The operations of the model in order, over numbered tensors."""

        def __init__(self) -> None:
            super().__init__()
            self.steps = [(op, _module(torch, op, model)) for op in model.ops]
            for op, module in self.steps:
                if isinstance(module, torch.nn.Module):
                    _attach(torch, self, op.name, module)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tensors = {0: x}
            for op, module in self.steps:
                tensors[op.output] = module(*(tensors[i] for i in op.inputs))
            return tensors[model.ops[-1].output]

    return Twin()


def _attach(torch: Any, root: Any, name: str, module: Any) -> None:
    """Make ``root.a.b`` the module for the name ``a.b``."""
    *parents, last = name.split(".")
    for parent in parents:
        if parent not in root._modules:
            root.add_module(parent, torch.nn.Module())
        root = root._modules[parent]
    root.add_module(last, module)


def _module(torch: Any, op: Op, model: Model) -> Callable[..., Any]:
    """The PyTorch module for one operation (for Add, a function: it has no name of its own)."""
    nn, layer, x = torch.nn, op.layer, model.tensors[op.inputs[0]]
    match layer:
        case layers.Linear():
            module = nn.Linear(x[0], layer.out_features, bias=layer.bias)
        case layers.Conv2d():
            kernel, stride = pair(layer.kernel_size), pair(layer.stride)
            padding = layer.padding if isinstance(layer.padding, str) else pair(layer.padding)
            module = nn.Conv2d(
                x[0],
                layer.out_channels,
                kernel,
                stride,
                padding,
                pair(layer.dilation),
                layer.groups,
                layer.bias,
            )
        case layers.MaxPool2d():
            module = nn.MaxPool2d(pair(layer.kernel_size), layer.strides, pair(layer.padding))
        case layers.AvgPool2d():
            module = nn.AvgPool2d(pair(layer.kernel_size), layer.strides, pair(layer.padding))
        case layers.GlobalAvgPool2d():
            module = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        case layers.BatchNorm():
            kind = nn.BatchNorm1d if isinstance(layer, layers.BatchNorm1d) else nn.BatchNorm2d
            module = kind(x[0], layer.eps, layer.momentum, layer.affine)
        case layers.GroupNorm():
            module = nn.GroupNorm(layer.num_groups, x[0], layer.eps, layer.affine)
        case layers.LayerNorm():
            module = nn.LayerNorm(layer.sizes, layer.eps, layer.elementwise_affine, layer.bias)
        case layers.ReLU():
            module = nn.ReLU()
        case layers.ReLU6():
            module = nn.ReLU6()
        case layers.LeakyReLU():
            module = nn.LeakyReLU(layer.negative_slope)
        case layers.GELU():
            module = nn.GELU()
        case layers.SiLU():
            module = nn.SiLU()
        case layers.Hardswish():
            module = nn.Hardswish()
        case layers.Sigmoid():
            module = nn.Sigmoid()
        case layers.Tanh():
            module = nn.Tanh()
        case layers.Flatten():
            module = nn.Flatten()
        case layers.Dropout():
            module = nn.Dropout(layer.p)
        case layers.Add():
            return torch.add  # type: ignore[no-any-return]
        case _:
            raise NotImplementedError(f"no PyTorch module for the layer '{layer.kind}'")
    return module  # type: ignore[no-any-return]
