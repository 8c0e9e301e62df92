"""Flower's own long-running programs as our children: ``python -m client.flower NAME …``.

Started through this interpreter rather than by name, they need no PATH; and they end with the
process that started them.
"""

from __future__ import annotations

import sys

from client.children import end_with_parent


def main() -> None:
    """Run the program named first with the arguments after it."""
    end_with_parent()
    name = sys.argv.pop(1)
    sys.argv[0] = f"flower-{name}"
    if name == "supernode":
        from flwr.supernode.cli import flower_supernode

        flower_supernode()
    elif name == "superlink":
        from flwr.superlink.cli.flower_superlink import flower_superlink

        flower_superlink()
    else:
        raise SystemExit(f"client.flower: no program '{name}': supernode, superlink")


if __name__ == "__main__":
    main()
