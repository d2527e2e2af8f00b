"""The demos: the whole story, offline, once for each kind of model."""

from dmc.extras import require_extra

require_extra("demo", "skimage", "sklearn")
