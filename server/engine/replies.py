"""Is a node's reply fit to be aggregated? What a node sends is checked before it is believed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from client.errors import ConfigError, PocketfedError
from client.fields import describe
from client.model import Model
from client.model.graph import Param
from client.model.losses import Loss
from client.record import NodeRecord, record_from_json
from client.wire import ARRAYS, METRICS, RECORD

MAX_EXAMPLES = 2**31


@dataclass(frozen=True)
class Expected:
    """What replies must bring.

    ``sent``: the values that come back, ``frozen``: names of those that need not.
    """

    sent: Mapping[str, Param]
    frozen: frozenset[str]
    accuracy: bool  # whether predictions are right or wrong

    @classmethod
    def of(cls, model: Model, loss: Loss) -> Expected:
        """Of a model that is trained by a loss."""
        sent = {value.name: value for value in model.sent}
        frozen = frozenset(v.name for v in model.values if v.name not in sent)
        return cls(sent, frozen, loss.has_accuracy)

    def metrics(self, task: str) -> tuple[str, ...]:
        """The keys of a reply's metrics."""
        kind = "train" if task == "train" else "eval"
        accuracy = [f"{kind}-accuracy"] if self.accuracy else []
        return ("num-examples", f"{kind}-loss", *accuracy)


class RejectedError(PocketfedError):
    """A reply that is left out; ``record`` is the node's own, where that much could be read."""

    def __init__(self, reason: str, record: NodeRecord | None = None) -> None:
        super().__init__(reason)
        self.record = record


def check_reply(content: RecordDict, task: str, partition: str, expected: Expected) -> NodeRecord:
    """The node's record of a reply fit to be aggregated; RejectedError says why it is not.

    A reply to "train" brings what is not frozen as float32 arrays that can be used.
    """
    record = _record(content, partition)
    try:
        _check_metrics(content, expected.metrics(task), record)
        if task == "train":
            _check_arrays(content, expected.sent)
            if record.placement is None:
                raise RejectedError("record.placement: is missing")
    except RejectedError as e:
        raise RejectedError(str(e), record) from None
    return record


def check_foreign_reply(content: RecordDict, task: str, expected: Expected) -> None:
    """RejectedError if the reply of a node that runs another ClientApp cannot be aggregated.

    Of its metrics, those that are ours (and num-examples, which it must bring) are kept; what is
    frozen it may bring, and it is left out.
    """
    metrics = _metrics(content)
    _check_count(metrics.get("num-examples"))
    for key in set(metrics) - set(expected.metrics(task)):
        del metrics[key]
    _check_finite(metrics)
    if task == "train":
        arrays = content.get(ARRAYS)
        if isinstance(arrays, ArrayRecord):
            for name in set(arrays) & expected.frozen:
                del arrays[name]
        _check_arrays(content, expected.sent)


def keep_common_metrics(replies: list[Message]) -> None:
    """Leave only what all replies bring, as Flower's strategies ask; foreign ones bring less."""
    brought = [reply.content.metric_records[METRICS] for reply in replies]
    for metrics in brought:
        for key in [key for key in metrics if any(key not in others for others in brought)]:
            del metrics[key]


def mean_values(replies: list[Message], names: list[str]) -> dict[str, NDArray[np.float32]]:
    """Means of some of the arrays that nodes sent, weighted by their examples."""
    weights = [int(r.content.metric_records[METRICS]["num-examples"]) for r in replies]  # type: ignore[arg-type]
    sent = [r.content.array_records[ARRAYS] for r in replies]
    return {
        name: np.average([a[name].numpy() for a in sent], axis=0, weights=weights).astype(
            np.float32
        )
        for name in names
    }


def payload_nbytes(message: Message) -> int:
    """Bytes of a message's records, as they go over the wire (without Flower's framing)."""
    if not message.has_content():
        return 0
    # arrays count as they are; the rest is small, and Flower cannot count an empty text
    return sum(
        record.count_bytes() if isinstance(record, ArrayRecord) else len(record.deflate())
        for record in message.content.values()
    )


def _metrics(content: RecordDict) -> MetricRecord:
    metrics = content.get(METRICS)
    if not isinstance(metrics, MetricRecord) or len(content.metric_records) != 1:
        raise RejectedError(f"needs exactly one MetricRecord, under '{METRICS}'")
    return metrics


def _check_count(count: object) -> None:
    if not isinstance(count, int) or not 1 <= count <= MAX_EXAMPLES:
        raise RejectedError(
            f"metrics.num-examples: found {count}, needs a whole number from 1 to {MAX_EXAMPLES}"
        )


def _check_metrics(content: RecordDict, keys: tuple[str, ...], record: NodeRecord) -> None:
    metrics = _metrics(content)
    if set(metrics) != set(keys):
        raise RejectedError(f"metrics: found {sorted(metrics)}, needs {', '.join(keys)}")
    _check_finite(metrics)
    count = metrics["num-examples"]
    _check_count(count)
    if count != record.num_examples:
        raise RejectedError(
            f"metrics.num-examples: found {count}, but the record says {record.num_examples}"
        )


def _check_finite(metrics: MetricRecord) -> None:
    for key, value in metrics.items():
        if isinstance(value, list) or not math.isfinite(value):
            raise RejectedError(f"metrics.{key}: found {describe(value)}, needs a finite number")


def _check_arrays(content: RecordDict, values: Mapping[str, Param]) -> None:
    arrays = content.get(ARRAYS)
    if not isinstance(arrays, ArrayRecord) or len(content.array_records) != 1:
        raise RejectedError(f"needs exactly one ArrayRecord, under '{ARRAYS}'")
    missing = [name for name in values if name not in arrays]
    extra = [name for name in arrays if name not in values]
    if missing or extra:
        raise RejectedError(
            f"arrays: missing {', '.join(missing) or 'none'}, "
            f"not in the model: {', '.join(extra) or 'none'}"
        )
    for name, param in values.items():
        try:
            value = arrays[name].numpy()
        except (ValueError, TypeError, OSError, EOFError) as e:
            raise RejectedError(f"arrays.{name}: cannot be read: {e}") from None
        if value.shape != param.shape:
            raise RejectedError(f"arrays.{name}: found shape {value.shape}, needs {param.shape}")
        if value.dtype != np.float32:
            raise RejectedError(f"arrays.{name}: found dtype {value.dtype}, needs float32")
        if flaw := param.flaw(value):
            raise RejectedError(f"arrays.{name}: {flaw}")


def _record(content: RecordDict, partition: str) -> NodeRecord:
    config = content.get(RECORD)
    text = config.get("json") if isinstance(config, ConfigRecord) else None
    if not isinstance(text, str):
        raise RejectedError(f"needs a ConfigRecord under '{RECORD}' with the text 'json'")
    try:
        record = record_from_json(text)
    except ConfigError as e:
        raise RejectedError(str(e)) from None
    if record.partition != partition:
        raise RejectedError(
            f"record.partition: found '{record.partition}', this node is '{partition}'"
        )
    return record
