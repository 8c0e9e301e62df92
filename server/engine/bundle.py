"""What is submitted to Flower for a run: settings, and no code.

Nodes and server run the pocketfed that is installed there. The run's config holds the resolved
experiment, which lies in the bundle for reading too.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import tomli_w
import yaml
from flwr.cli.build import build_fab_from_files
from flwr.supercore.fab import Fab

from client import __version__
from client.config import Experiment
from client.errors import ConfigError, StoreError
from server.files import reason


def bundle_files(experiment: Experiment, base: Path) -> dict[str, bytes]:
    """Name -> content of the files of a Flower app that carries the experiment.

    ``base``: the folder that its relative paths start from on the server.
    """
    settings = {
        "project": {
            "name": "pocketfed-run",
            "version": __version__,
            "description": f"The experiment {experiment.name}, for nodes with pocketfed installed",
            "license": "Apache-2.0",
            "dependencies": [],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "pocketfed",
                    "fab-include": ["experiment.yaml"],
                    "components": {"serverapp": "server.app:app", "clientapp": "client.app:app"},
                    "config": {
                        "experiment": json.dumps(experiment.to_dict()),
                        "base": str(base.resolve()),
                        "out": "",
                    },
                }
            }
        },
    }
    text = yaml.safe_dump(experiment.to_dict(), sort_keys=False, allow_unicode=True)
    return {"pyproject.toml": tomli_w.dumps(settings).encode(), "experiment.yaml": text.encode()}


def build_bundle(experiment: Experiment, base: Path) -> Fab:
    """The bundle as Flower sends it."""
    content, _ = build_fab_from_files(bundle_files(experiment, base))
    return Fab(hashlib.sha256(content).hexdigest(), content, {})


def write_bundle(experiment: Experiment, base: Path, out: Path) -> None:
    """Write the files into a folder that ``flwr run`` takes; ConfigError if it is not empty."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise ConfigError(f"{out}: is not empty: choose another folder")
        for name, content in bundle_files(experiment, base).items():
            (out / name).write_bytes(content)
    except OSError as e:
        raise StoreError(f"{out}: cannot be written: {reason(e)}") from None
