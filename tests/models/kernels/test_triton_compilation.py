"""Every Triton kernel compiles for a GPU: the interpreter accepts what the compiler does not, and no GPU is needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

pytest.importorskip("triton")
MODULES = ("triton_attention", "triton_layers", "triton_training", "triton_training_layers")
CONSTANTS = {"HEADS": 4, "SIZE": 64, "ROWS": 64, "COLUMNS": 32, "PRECISION": "tf32", "WIDE": False, "STRICT": True}
CONSTANTS |= {"WIDTH": 384, "BLOCK": 512, "BIASED": False}
USES: list[dict[str, Any]] = [
    {"RULE": 1, "WINDOW": 64, "DROPPED": 0, "TRAINED": False},
    {"RULE": 0, "WINDOW": 0, "DROPPED": 1000, "TRAINED": True},
]
WHOLE = (
    "*i32",
    ("words", "tiles", "sequences", "row_codes", "column_codes", "tokens", "segments", "positions", "seeds"),
)
WIDE = ("*fp32", ("sums", "deltas", "partial", "cosines", "sines"))
OTHERS = (("*i1", ("last",)), ("i32", ("count", "site")), ("fp32", ("scale", "epsilon")))
TYPES = {name: kind for kind, names in (WHOLE, WIDE, *OTHERS) for name in names}
PRODUCTS = ("_attend_kernel", "_query_gradient_kernel", "_key_value_gradient_kernel")


def kernels() -> list[tuple[str, str]]:
    modules = {name: import_module(f"rankwell.models.kernels.{name}") for name in MODULES}
    return [(module, name) for module, found in modules.items() for name in vars(found) if name.endswith("_kernel")]


@pytest.mark.parametrize("numbers", ["bf16", "fp16"])
@pytest.mark.parametrize("use", USES, ids=["scoring", "training"])
@pytest.mark.parametrize(("module", "name"), kernels())
def test_a_kernel_compiles(module: str, name: str, use: dict[str, Any], numbers: str) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(import_module(f"rankwell.models.kernels.{module}"), name)
    if use is USES[1] and not use.keys() & kernel.arg_names:
        pytest.skip("has one use only")
    constants = {name: value for name, value in (CONSTANTS | use).items() if name in kernel.arg_names}
    if "WIDTH" in constants:
        constants["ROWS"] = 4  # a whole row of features is in memory
    source = ASTSource(
        kernel,
        {name: "constexpr" if name in constants else TYPES.get(name, f"*{numbers}") for name in kernel.arg_names},
        {(kernel.arg_names.index(name),): value for name, value in constants.items()},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 2})
    assert compiled.asm["cubin"]
    if name in PRODUCTS:
        assert "wgmma" in compiled.asm["ptx"]  # the matrix instructions
