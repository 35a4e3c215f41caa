"""Environment that the agent SDK must find before it is imported.

Imports nothing of it. Without these settings an import fetches a price list from the network, opens
tracing exporters that happen to be configured, and writes below the user's home.
"""

from __future__ import annotations

import os
from pathlib import Path

_SETTINGS = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "LITELLM_TELEMETRY": "False",
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "ALLOW_SHORT_CONTEXT_WINDOWS": "1",
    "LOG_LEVEL": "WARNING",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}
_DROPPED_PREFIXES = ("OTEL_", "LMNR_", "LITELLM_", "OPENAI_", "OPENHANDS_", "ANTHROPIC_")
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "PYTHONPATH", "PYTHONPYCACHEPREFIX",
         "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "XDG_STATE_HOME", "OPENBLAS_CORETYPE",
         "OPENBLAS_L2_SIZE")  # fmt: skip


def worker_environment(home: Path) -> dict[str, str]:
    """Environment of a worker process: an allow-list, a home of its own, and the settings above."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, **_SETTINGS, "HOME": str(home)}


def prepare_this_process() -> None:
    """Apply the settings here; for processes that were not started with `worker_environment`."""
    for name in list(os.environ):
        if name.startswith(_DROPPED_PREFIXES):
            del os.environ[name]
    os.environ.update(_SETTINGS)
