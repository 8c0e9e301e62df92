"""Data sets: from files and packages to arrays, shared out to nodes, kept apart to evaluate."""

from client.data.dataset import Dataset
from client.data.holdout import split_holdout, split_share
from client.data.partition import partition
from client.data.parts import WrittenPart, write_parts
from client.data.sources import cut_for, fit_inputs, fit_to, load, load_inputs

__all__ = [
    "Dataset",
    "WrittenPart",
    "cut_for",
    "fit_inputs",
    "fit_to",
    "load",
    "load_inputs",
    "partition",
    "split_holdout",
    "split_share",
    "write_parts",
]
