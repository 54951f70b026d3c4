"""The public name of `fastload.tools.monitor`."""

from fastload.tools.monitor import *  # noqa: F403
from fastload.tools.monitor import __all__ as __all__
