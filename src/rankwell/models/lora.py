"""LoRA through peft: small matrices beside an encoder's are trained, and merged into them when the model is saved."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from rankwell.core.errors import MissingExtraError
from rankwell.models.encoder import Encoder
from rankwell.models.foreign import ForeignEncoder


def add_lora(encoder: Encoder | ForeignEncoder, rank: int, alpha: float, *, train_tokens: bool = False) -> None:
    """Freeze an encoder and put trainable matrices of a small ``rank`` beside its linear layers.

    With ``train_tokens`` the token embeddings stay trainable.
    """
    try:
        import peft
    except ImportError:
        raise MissingExtraError("peft", "lora", "training with LoRA") from None
    part: nn.Module = encoder if isinstance(encoder, Encoder) else encoder.backbone
    part.requires_grad_(False)
    names = [name for name, module in part.named_modules() if type(module) is nn.Linear]
    inject: Any = peft.inject_adapter_in_model
    inject(peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=names), part)
    if train_tokens:
        encoder.tokens.weight.requires_grad_(True)


def merged_copy(model: nn.Module) -> Any:
    """A copy of a model whose LoRA matrices, if any, are part of its weights."""
    plain = copy.deepcopy(model)
    for module in list(plain.modules()):
        children: list[tuple[str, Any]] = list(module.named_children())
        for name, child in children:
            if hasattr(child, "get_base_layer"):
                child.merge()
                setattr(module, name, child.get_base_layer())
    return plain
