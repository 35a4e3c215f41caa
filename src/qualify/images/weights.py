"""What looks like model weights, by the first bytes of a file and its size; by name only where the
bytes say nothing.

Images must hold none. Python packages ship a few small ones that are no model: those are allowed by
the digest of their bytes, with a reason, in `data/weights-allowed.json`.
"""

from __future__ import annotations

import re

from qualify.images.allowed import allowed_files

HEAD = 512
"""Bytes of a file that are looked at."""
_MIB = 1 << 20
_LARGE = 256 * _MIB
_TORCH_LEGACY = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
"""A pickle of torch's legacy magic number (torch/serialization.py, MAGIC_NUMBER)."""
_MAGIC: tuple[tuple[int, tuple[bytes, ...], int, str], ...] = (
    (0, (b"lmgg", b"fmgg", b"tjgg", b"algg"), _MIB, "GGML weights"),
    (0, (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"), _MIB, "a large pickle"),
    (0, (b"\x89HDF\r\n\x1a\n",), _MIB, "a large HDF5 file"),
    (4, (b"TFL3",), _MIB, "a TensorFlow Lite model"),
    (0, (b"\x93NUMPY",), 16 * _MIB, "a large NumPy array"),
)
"""Offset, first bytes, least size in bytes, what it is."""
_NAMED = re.compile(
    r"(\.(safetensors|gguf|ggml|pth?|ckpt|onnx|h5|tflite|msgpack|nemo|engine)"
    r"|(^|/)(pytorch_model|model|consolidated|adapter_model|diffusion)[^/]*\.bin"
    r"|\.data-\d{5}-of-\d{5})$",
    re.IGNORECASE,
)
_SAFETENSORS = re.compile(rb'\{[ \t\r\n]*["}]')
"""How the JSON behind the 8 bytes of its size begins."""
_KNOWN_LARGE = (b"\x7fELF", b"!<arch>\n", b"!<thin>\n")


def weights_kind(head: bytes, size: int, path: str) -> str | None:
    """What a file is, in words, when it may be weights; else `None`.

    `head` is its first `HEAD` bytes (fewer when it is shorter), `size` its size in bytes.
    """
    return _by_content(head, size) or _by_size_and_name(head, size, path)


def _by_content(head: bytes, size: int) -> str | None:
    if head[:4] == b"GGUF" and 1 <= int.from_bytes(head[4:8], "little") <= 16:
        return "GGUF weights"
    if _SAFETENSORS.match(head, 8) and 2 <= int.from_bytes(head[:8], "little") <= min(
        size - 8, 1 << 28
    ):
        return "safetensors weights"
    if head.startswith(_TORCH_LEGACY):
        return "a PyTorch checkpoint (legacy)"
    if head.startswith(b"PK\x03\x04"):
        return _zip_kind(head, size)
    return next(
        (kind for at, magic, least, kind in _MAGIC if _is(head, at, magic, size, least)), None
    )


def _is(head: bytes, at: int, magic: tuple[bytes, ...], size: int, least: int) -> bool:
    return size >= least and head[at:].startswith(magic)


def _zip_kind(head: bytes, size: int) -> str | None:
    """By the name of the first member: torch.save begins with NAME/data.pkl."""
    name = head[30 : 30 + int.from_bytes(head[26:28], "little")]
    if name.endswith(b"data.pkl") and size >= _MIB:
        return "a PyTorch checkpoint"
    return "a large NumPy archive" if name.endswith(b".npy") and size >= 16 * _MIB else None


def _by_size_and_name(head: bytes, size: int, path: str) -> str | None:
    if size >= _MIB and _NAMED.search(path):
        return "named like weights"
    if size >= _LARGE and not head.startswith(_KNOWN_LARGE):
        return "a file of 256 MiB or more that is neither program nor library"
    return None


def allowed_weights() -> dict[str, str]:
    """SHA-256 (hexadecimal) → reason, for files that are permitted."""
    return allowed_files("weights-allowed.json")
