"""Fit BERT rankers to your own documents, run them fast, and see whether they are better.

Everything a user needs is a name of this package; ``__init__.pyi`` lists them. Each name is imported when it is first
used, so ``import rankwell`` costs next to nothing and needs no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
