"""Train, use and finetune a Transformer-encoder text classifier. The command line is `textcls --help`."""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textcls.infer import Classifier, Prediction, load

__version__ = version("textcls")
__all__ = ["Classifier", "Prediction", "__version__", "load"]


def __getattr__(name: str) -> Any:
    """Import the public names when first used, so that importing the package imports no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'textcls' has no attribute {name!r}")
    from textcls import infer

    return getattr(infer, name)
