"""The architectures of classifiers, by name.

`cifar_resnet32` (any depth 6n+2), `torchvision:NAME`, `transformers:OWNER/NAME` or `transformers:FOLDER`,
`FILE.py:FUNCTION`; every other name is timm's. To add a source,
write a file for it and list it here, before timm.
"""

from __future__ import annotations

from dmc.models.architecture_source import Architectures, Listed

CLASSIFIERS = Architectures(
    "architecture",
    Listed(r".+\.py:\w+", "dmc.models.user_network:UserNetworks"),
    Listed("torchvision:.*", "dmc.models.torchvision_models:TorchvisionModels", scheme="torchvision"),
    Listed("transformers:.*", "dmc.models.transformers_models:TransformersModels", scheme="transformers"),
    Listed(r"cifar_resnet\d{1,9}", "dmc.models.cifar_resnet:CifarResNets"),
    Listed("(?s).*", "dmc.models.timm_models:TimmModels", scheme="timm"),
)

known_architecture = CLASSIFIERS.known
create = CLASSIFIERS.create
default_preprocessing = CLASSIFIERS.preprocessing
