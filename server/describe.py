"""`pocketfed model`: shapes, parameters, operations and bytes of each layer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from client.model import Model
from server import console

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class LayerRow:
    """One layer, for one example, in float32. ``flops`` of the forward pass."""

    block: str
    name: str
    type: str
    output_shape: list[int]
    params: int
    flops: int
    params_bytes: int
    output_bytes: int


def describe(model: Model) -> dict[str, Any]:
    """The JSON object of `pocketfed model`."""
    rows = [
        LayerRow(
            block=model.block_names[op.block],
            name=op.name,
            type=op.layer.kind,
            output_shape=list(model.tensors[op.output]),
            params=sum(p.size for p in op.params),
            flops=op.layer.flops(model.tensors[op.inputs[0]]),
            params_bytes=4 * sum(p.size for p in op.params),
            output_bytes=4 * prod(model.tensors[op.output]),
        )
        for op in model.ops
    ]
    return {
        "model": model.name,
        "input_shape": list(model.input.shape),
        "classes": model.num_classes,
        "params": model.num_params,
        "flops": sum(r.flops for r in rows),
        "params_bytes": 4 * model.num_params,
        "layers": [asdict(r) for r in rows],
    }


def render(value: dict[str, Any]) -> Table:
    """The same as a table, with the sums in the last row."""
    rows = [
        [
            r["name"],
            r["type"],
            "x".join(map(str, r["output_shape"])),
            f"{r['params']:,}",
            f"{r['flops']:,}",
            console.nbytes(r["params_bytes"]),
            console.nbytes(r["output_bytes"]),
        ]
        for r in value["layers"]
    ]
    total = [f"{value['params']:,}", f"{value['flops']:,}", console.nbytes(value["params_bytes"])]
    rows.append(["total", "", "", *total, ""])
    shape = "x".join(map(str, value["input_shape"]))
    title = f"{value['model']}: input {shape}, {value['classes']} classes; flops forward, 1 example"
    columns = ["layer", "type", "output", "parameters", "flops", "weights", "output bytes"]
    return console.table(title, columns, rows)
