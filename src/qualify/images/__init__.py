"""Floor 3: container images, read without a container engine and without trusting them.

For: opening an OCI layout or a docker-archive, the merged view of its layers, the guards that need
no GPU, comparing, exporting and unpacking images, whoever built them.

Promises: every blob that is used is hashed; layers are streamed once; a path of an image never
leads out of the folder that it is unpacked into. Never: runs anything of an image, or talks to a
registry.
"""

from __future__ import annotations

from qualify.images.errors import ImageFault, ImageTampered
from qualify.images.image import Image, Layer, open_image
from qualify.images.unpacking import UnpackedImage, unpack_image

__all__ = [
    "Image",
    "ImageFault",
    "ImageTampered",
    "Layer",
    "UnpackedImage",
    "open_image",
    "unpack_image",
]
