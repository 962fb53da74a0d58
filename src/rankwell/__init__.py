"""A search ranker fitted to your documents, and proof that it is better.

Everything a user needs is a name of this package; ``__init__.pyi`` lists them. Each name is imported when it is first
used, so ``import rankwell`` costs next to nothing and needs no torch.
"""

import lazy_loader

_find, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version(__name__)
    return _find(name)
