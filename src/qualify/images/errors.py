"""What can be wrong with an image, each with what to do next."""

from __future__ import annotations

from qualify.core.errors import Refusal, UsageError


class ImageFault(UsageError):
    """It is no image that can be read: malformed, hostile, truncated, or of a kind not known."""


class ImageTampered(Refusal):
    """A blob is not the one that its digest names."""


def damaged(what: str, where: str) -> ImageFault:
    """The error for bytes that do not make up an image."""
    return ImageFault(what, where=where, fix="get the image again, and check its digest")
