"""The architectures of classifiers, by name.

`cifar_resnet32` (any depth 6n+2), `torchvision:NAME`, `FILE.py:FUNCTION`; every other name is timm's. To add a source,
write a file for it and list it here, before timm.
"""

from __future__ import annotations

from dmc.models.architecture_source import Architectures
from dmc.models.cifar_resnet import CifarResNets
from dmc.models.timm_models import TimmModels
from dmc.models.torchvision_models import TorchvisionModels
from dmc.models.user_network import UserNetworks

CLASSIFIERS = Architectures("architecture", UserNetworks(), TorchvisionModels(), CifarResNets(), TimmModels())

known_architecture = CLASSIFIERS.known
create = CLASSIFIERS.create
default_preprocessing = CLASSIFIERS.preprocessing
