"""What is remembered across processes is not taken for what it was not made from; the table is in CONTRIBUTING.md."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
from safetensors.torch import load_file, save_file

from rankwell import models
from rankwell.core.errors import RankwellError
from rankwell.corpus.formats.fields import Columns
from rankwell.corpus.records import Qrels, Query, Ranking
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.devices import AGREEMENT
from rankwell.rank.engines import agreement
from rankwell.training.fit.fit import _claim


def other_weights(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({name: tensor + 0.01 for name, tensor in weights.items()}, folder / "model.safetensors")


def edit(name: str, **values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
        (folder / name).write_text(json.dumps({**content, **values}))

    return change


def pooling(folder: Path) -> None:
    modules = [
        {"idx": i, "path": path, "type": f"sentence_transformers.models.{path[2:] or 'Transformer'}"}
        for i, path in enumerate(("", "1_Pooling"))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 32, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    )


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (other_weights, {}),
        (edit("config.json", layer_norm_eps=0.1), {}),
        (edit("tokenizer_config.json", model_max_length=100), {}),
        (pooling, {}),
        (None, {"max_length": 64}),
        (None, {"document_prompt": "passage: "}),
    ],
)
def test_vectors_are_named_by_all_that_decides_them(
    tiny_bi_encoder: Path, tmp_path: Path, change: Callable[[Path], None] | None, options: dict[str, Any]
) -> None:
    folder = shutil.copytree(tiny_bi_encoder, tmp_path / "model")
    before = BiEncoder.from_pretrained(folder, device="cpu")
    if change is not None:
        change(folder)
    after = BiEncoder.from_pretrained(folder, device="cpu", **options)
    assert after.name != before.name
    assert not np.array_equal(after.encode_documents(["bees " * 200]), before.encode_documents(["bees " * 200]))


@pytest.mark.filterwarnings("ignore::rankwell.core.errors.Notice")
def test_agreement_is_measured_again_for_another_model_purpose_kernel_or_processor(
    tiny_bi_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[object] = []

    def measure(score: object) -> float:
        measured.append(score)
        return 0.01

    code = shutil.copytree(Path(models.__path__[0]), tmp_path / "code")
    folder = shutil.copytree(tiny_bi_encoder, tmp_path / "model")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("rankwell.models.devices.CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(models, "__path__", [str(code)])
    monkeypatch.setattr(agreement, "_measure", measure)

    def measures(purpose: Any = "rank") -> bool:
        before = len(measured)
        AGREEMENT["int8"](folder, purpose, lambda *_: np.zeros(0, np.float32))
        return len(measured) > before

    assert (measures(), measures()) == (True, False)
    assert measures("encode")
    (tmp_path / "cpuinfo").write_text("Features\t: fp asimd asimddp\n")
    assert (measures(), measures()) == (True, False)
    (code / "kernels" / "int8_kernels.py").write_text("# other code")
    assert (measures(), measures()) == (True, False)
    other_weights(folder)
    assert (measures(), measures()) == (True, False)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 2}, "seed"),
        ({"measure": "nDCG@10"}, "measure"),
        ({"tries": ("some/model",)}, "models to try"),
        ({"digest": "other"}, "data"),
        ({"text": "other words"}, "data"),
        ({"grade": 2}, "data"),
        ({"columns": None}, "data"),
        ({"columns": Columns(title="words")}, "data"),
        ({"engine": {"q": Ranking.of(["b"], [1.0])}}, "run"),
    ],
)
def test_finished_steps_of_another_fit_are_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    def task(**options: Any) -> Any:
        given: dict[str, Any] = {
            "seed": 1,
            "measure": "RR@10",
            "tries": (),
            "digest": "d",
            "text": "words",
            "grade": 1,
            "engine": None,
            "columns": Columns(text="words"),
        }
        given |= options
        part = SimpleNamespace(queries=[Query("q", given["text"])], qrels=Qrels({"q": {"a": given["grade"]}}))
        return SimpleNamespace(
            parts=SimpleNamespace(fit=part, judged=part, report=part),
            dataset=SimpleNamespace(digest=lambda: given["digest"]),
            **{name: given[name] for name in ("seed", "measure", "tries", "engine", "columns")},
            out=tmp_path / "system",
            work=tmp_path / "work",
        )

    (tmp_path / "work").mkdir()
    _claim(task())
    _claim(task())
    with pytest.raises(RankwellError, match=f"holds an unfinished fit with another {named}"):
        _claim(task(**change))
