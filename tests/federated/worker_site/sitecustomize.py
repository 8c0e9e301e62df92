"""Python imports this at its start where this folder is on PYTHONPATH: one more backend is found.

So a worker process of a test has the backend ``brittle``, and no hook for it is in client/.
"""

from pathlib import Path

import client.backends

client.backends.__path__.append(str(Path(__file__).parent))
