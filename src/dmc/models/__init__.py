"""Architectures by name: CIFAR ResNets here, everything else from timm and torchvision."""

from dmc.models.architectures import create, default_preprocessing, known_architecture
from dmc.models.cifar_resnet import register_with_timm

__all__ = ["create", "default_preprocessing", "known_architecture", "register_with_timm"]
