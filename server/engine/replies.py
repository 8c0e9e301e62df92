"""Is a node's reply fit to be aggregated? What a node sends is checked before it is believed."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from client.errors import ConfigError, PocketfedError
from client.fields import describe
from client.record import NodeRecord, record_from_json
from client.wire import ARRAYS, METRICS, RECORD

Shapes = Mapping[str, tuple[int, ...]]

MAX_EXAMPLES = 2**31

METRIC_KEYS = {
    "train": ("num-examples", "train-loss", "train-accuracy"),
    "evaluate": ("num-examples", "eval-loss", "eval-accuracy"),
}


class RejectedError(PocketfedError):
    """A reply that is left out; ``record`` is the node's own, where that much could be read."""

    def __init__(self, reason: str, record: NodeRecord | None = None) -> None:
        super().__init__(reason)
        self.record = record


def check_reply(content: RecordDict, task: str, partition: str, shapes: Shapes) -> NodeRecord:
    """The node's record of a reply fit to be aggregated; RejectedError says why it is not.

    ``shapes``: names and shapes of the model's values, which a reply to "train" must bring
    as finite float32 arrays.
    """
    record = _record(content, partition)
    try:
        _check_metrics(content, task, record)
        if task == "train":
            _check_arrays(content, shapes)
            if record.placement is None:
                raise RejectedError("record.placement: is missing")
    except RejectedError as e:
        raise RejectedError(str(e), record) from None
    return record


def check_foreign_reply(content: RecordDict, task: str, shapes: Shapes) -> None:
    """RejectedError if the reply of a node that runs another ClientApp cannot be aggregated.

    Of its metrics, those that are ours (and num-examples, which it must bring) are kept.
    """
    metrics = content.get(METRICS)
    if not isinstance(metrics, MetricRecord) or len(content.metric_records) != 1:
        raise RejectedError(f"needs exactly one MetricRecord, under '{METRICS}'")
    count = metrics.get("num-examples")
    if not isinstance(count, int) or not 1 <= count <= MAX_EXAMPLES:
        raise RejectedError(
            f"metrics.num-examples: found {count}, needs a whole number from 1 to {MAX_EXAMPLES}"
        )
    for key in set(metrics) - set(METRIC_KEYS[task]):
        del metrics[key]
    _check_finite(metrics)
    if task == "train":
        _check_arrays(content, shapes)


def keep_common_metrics(replies: list[Message]) -> None:
    """Leave only what all replies bring, as Flower's strategies ask; foreign ones bring less."""
    brought = [reply.content.metric_records[METRICS] for reply in replies]
    for metrics in brought:
        for key in [key for key in metrics if any(key not in others for others in brought)]:
            del metrics[key]


def payload_nbytes(message: Message) -> int:
    """Bytes of a message's records, as they go over the wire (without Flower's framing)."""
    if not message.has_content():
        return 0
    # arrays count as they are; the rest is small, and Flower cannot count an empty text
    return sum(
        record.count_bytes() if isinstance(record, ArrayRecord) else len(record.deflate())
        for record in message.content.values()
    )


def _check_metrics(content: RecordDict, task: str, record: NodeRecord) -> None:
    metrics = content.get(METRICS)
    if not isinstance(metrics, MetricRecord) or len(content.metric_records) != 1:
        raise RejectedError(f"needs exactly one MetricRecord, under '{METRICS}'")
    if set(metrics) != set(METRIC_KEYS[task]):
        raise RejectedError(
            f"metrics: found {sorted(metrics)}, needs {', '.join(METRIC_KEYS[task])}"
        )
    _check_finite(metrics)
    count = metrics["num-examples"]
    if not isinstance(count, int) or not 1 <= count <= MAX_EXAMPLES:
        raise RejectedError(
            f"metrics.num-examples: found {count}, needs a whole number from 1 to {MAX_EXAMPLES}"
        )
    if count != record.num_examples:
        raise RejectedError(
            f"metrics.num-examples: found {count}, but the record says {record.num_examples}"
        )


def _check_finite(metrics: MetricRecord) -> None:
    for key, value in metrics.items():
        if isinstance(value, list) or not math.isfinite(value):
            raise RejectedError(f"metrics.{key}: found {describe(value)}, needs a finite number")


def _check_arrays(content: RecordDict, shapes: Shapes) -> None:
    arrays = content.get(ARRAYS)
    if not isinstance(arrays, ArrayRecord) or len(content.array_records) != 1:
        raise RejectedError(f"needs exactly one ArrayRecord, under '{ARRAYS}'")
    missing = [name for name in shapes if name not in arrays]
    extra = [name for name in arrays if name not in shapes]
    if missing or extra:
        raise RejectedError(
            f"arrays: missing {', '.join(missing) or 'none'}, "
            f"not in the model: {', '.join(extra) or 'none'}"
        )
    for name, shape in shapes.items():
        try:
            value = arrays[name].numpy()
        except (ValueError, TypeError, OSError, EOFError) as e:
            raise RejectedError(f"arrays.{name}: cannot be read: {e}") from None
        if value.shape != shape:
            raise RejectedError(f"arrays.{name}: found shape {value.shape}, needs {shape}")
        if value.dtype != np.float32:
            raise RejectedError(f"arrays.{name}: found dtype {value.dtype}, needs float32")
        if not np.isfinite(value).all():
            raise RejectedError(f"arrays.{name}: holds values that are not finite")


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
