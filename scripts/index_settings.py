"""Translate what this machine's pip is set to into the environment variables that uv reads.

Prints `NAME=VALUE` pairs, each ended by a NUL byte, for the caller to export. Values may hold
credentials: they go through the pipe to the caller and nowhere else. Runs under any Python >= 3.12
that has pip, and imports nothing outside the standard library.
"""

import ast
import subprocess
import sys

_PRECEDENCE = ("global", "install", ":env:")
_VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "timeout": "UV_HTTP_TIMEOUT",
}
_SEPARATORS = {"find-links": ","}


def uv_environment(listing: str) -> dict[str, str]:
    """Read the output of `pip config list` and return what uv's environment should say."""
    settings: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        key, _, literal = line.partition("=")
        section, _, name = key.rpartition(".")
        if section not in _PRECEDENCE or name not in _VARIABLES:
            continue
        rank = _PRECEDENCE.index(section)
        if name not in settings or rank >= settings[name][0]:
            settings[name] = (rank, str(ast.literal_eval(literal)))
    found = {}
    for name, (_, value) in settings.items():
        words = value.split()
        if words:
            found[_VARIABLES[name]] = _SEPARATORS.get(name, " ").join(words)
    return found


def main() -> None:
    """Ask pip and print the pairs."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    for name, value in uv_environment(listing).items():
        sys.stdout.write(f"{name}={value}\0")


if __name__ == "__main__":
    main()
