"""Models, and the architectures of classifiers by name. Importing a kind of model registers it; that happens here."""

from dmc.models.architectures import create, default_preprocessing, known_architecture
from dmc.models.cifar_resnet import register_with_timm
from dmc.models.detector import Detector
from dmc.models.specialist import Specialist

__all__ = ["Detector", "Specialist", "create", "default_preprocessing", "known_architecture", "register_with_timm"]
