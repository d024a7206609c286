"""Inert: see torchvision/__init__.py. InterpolationMode is used when modules are imported, so it is real."""

from enum import Enum

from torchvision import __getattr__  # noqa: F401


class InterpolationMode(Enum):
    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"
