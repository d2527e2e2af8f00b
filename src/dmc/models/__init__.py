"""Architectures by name: CIFAR ResNets here, everything else from timm and torchvision."""

from dmc.models.build import create, default_preprocessing, known_architecture

__all__ = ["create", "default_preprocessing", "known_architecture"]
