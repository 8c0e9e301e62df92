"""The same network in PyTorch: the peer that results and speed are held against (extra: peer)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from client.errors import MissingExtraError
from client.model import Model, Op, layers

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
    """The PyTorch module for one operation (Add, Concat: a function, without a name)."""
    nn, layer, x = torch.nn, op.layer, model.tensors[op.inputs[0]]

    class Tokens(nn.Embedding):  # type: ignore[misc, name-defined]  # torch is untyped here
        """Takes tokens as floats, as all inputs come."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.long())

    class LSTM(nn.LSTM):  # type: ignore[misc, name-defined]
        """Gives the output alone, without the states at the end."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)[0]

    class GRU(nn.GRU):  # type: ignore[misc, name-defined]
        """The same."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)[0]

    match layer:
        case layers.Linear():
            module = nn.Linear(x[-1], layer.out_features, bias=layer.bias)
        case layers.BatchNorm():
            kind = nn.BatchNorm1d if isinstance(layer, layers.BatchNorm1d) else nn.BatchNorm2d
            module = kind(x[0], layer.eps, layer.momentum, layer.affine)
        case layers.GroupNorm():
            module = nn.GroupNorm(layer.num_groups, x[0], layer.eps, layer.affine)
        case layers.LayerNorm():
            module = nn.LayerNorm(layer.sizes, layer.eps, layer.elementwise_affine, layer.bias)
        case layers.Conv():
            module = _convolution(torch, layer, x)
        case layers.Pool():
            window, dims = layer.window(x), layer.dims
            kind = "Max" if isinstance(layer, layers.MaxPool1d | layers.MaxPool2d) else "Avg"
            pool = getattr(nn, f"{kind}Pool{dims}d")
            padding = (window.pads[0], window.pads[2])[-dims:]
            module = pool(window.kernel[-dims:], window.stride[-dims:], padding)
        case layers.GlobalPool():
            largest = isinstance(layer, layers.GlobalMaxPool1d | layers.GlobalMaxPool2d)
            pool = getattr(nn, f"Adaptive{'Max' if largest else 'Avg'}Pool{layer.dims}d")
            module = nn.Sequential(pool(1), nn.Flatten())
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
        case layers.Embedding():
            module = Tokens(layer.rows, layer.embedding_dim)
        case layers.LSTM() | layers.GRU():
            kind = LSTM if isinstance(layer, layers.LSTM) else GRU
            module = kind(x[1], layer.hidden_size, layer.num_layers, layer.bias, batch_first=True)
        case layers.LastStep():
            return lambda x: x[:, -1]
        case layers.Transpose():
            return lambda x: x.transpose(1, 2)
        case layers.Flatten():
            module = nn.Flatten()
        case layers.Dropout():
            module = nn.Dropout(layer.p)
        case layers.Add():
            return torch.add  # type: ignore[no-any-return]
        case layers.Concat():
            return lambda *xs: torch.cat(xs, 1)
        case _:
            raise NotImplementedError(f"no PyTorch module for the layer '{layer.kind}'")
    return module  # type: ignore[no-any-return]


def _convolution(torch: Any, layer: layers.Conv, x: layers.Shape) -> Any:
    """Padding that PyTorch's own convolution does not know is put around its input."""
    window, dims = layer.window(x), layer.dims
    top, bottom, left, right = window.pads
    padding: Any = layer.padding if layer.padding == "same" else (top, left)[-dims:]
    asymmetric = padding != "same" and (top, left) != (bottom, right)
    module = (torch.nn.Conv1d if dims == 1 else torch.nn.Conv2d)(
        x[0],
        layer.out_channels,
        window.kernel[-dims:],
        window.stride[-dims:],
        0 if asymmetric else padding,
        window.dilation[-dims:],
        layer.groups,
        layer.bias,
    )
    if asymmetric:
        pads = (left, right, top, bottom)[: 2 * dims]
        pad = torch.nn.functional.pad
        module.register_forward_pre_hook(lambda _, args: (pad(args[0], pads),))
    return module
