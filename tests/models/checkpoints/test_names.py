"""Names of models: folders, folders in packages, repositories on the hub."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.models.checkpoints.folders import load_checkpoint
from rankwell.models.checkpoints.names import find_model, published_name


def test_a_folder_that_exists_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_model("owner/name") == Path("owner/name")
    assert find_model(str(tmp_path / "owner")) == tmp_path / "owner"


@pytest.mark.parametrize("name", ["/no/such/folder", "model", "../x", "a/b/c", "./owner/name", ""])
def test_what_can_be_nothing_else_is_a_folder(name: str) -> None:
    assert find_model(name) == Path(name)


def test_the_name_under_which_a_model_was_published(tmp_path: Path) -> None:
    assert published_name(tmp_path / "mine" / "model") == "model"
    cached = tmp_path / "models--mixedbread-ai--mxbai-rerank--base" / "snapshots" / "0a1b2c"
    assert published_name(cached) == "mixedbread-ai/mxbai-rerank--base"


def test_a_path_is_never_looked_up(tmp_path: Path) -> None:
    assert find_model(Path("owner/name")) == Path("owner/name")


class TestPackages:
    @pytest.fixture(autouse=True)
    def package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        inner = tmp_path / "rankwell_test_package" / "inner"
        (inner / "model").mkdir(parents=True)
        (inner.parent / "__init__.py").touch()
        (inner / "__init__.py").touch()
        (tmp_path / "rankwell_test_module.py").touch()
        monkeypatch.syspath_prepend(str(tmp_path))

    def test_a_folder_within_one(self, tmp_path: Path) -> None:
        expected = tmp_path / "rankwell_test_package" / "inner" / "model"
        assert find_model("rankwell_test_package:inner/model") == expected
        assert find_model("rankwell_test_package.inner:model") == expected

    @pytest.mark.parametrize(
        ("name", "problem"),
        [
            ("rankwell_no_package:model", "no package called rankwell_no_package is installed"),
            ("rankwell_no_package.inner:model", "no package called rankwell_no_package.inner is installed"),
            ("rankwell_test_package:other", "the package rankwell_test_package has no folder other"),
            ("rankwell_test_package:../rankwell_test_package", "has no folder"),
            ("rankwell_test_module:model", "the package rankwell_test_module has no folder model"),
        ],
    )
    def test_errors_name_what_is_missing(self, name: str, problem: str) -> None:
        with pytest.raises(RankwellError, match=problem) as error:
            find_model(name)
        assert "\n" not in str(error.value)


class TestTheHub:
    @pytest.fixture
    def hub(self) -> Any:
        return pytest.importorskip("huggingface_hub")

    def test_only_what_is_needed_is_downloaded(self, hub: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        asked: dict[str, Any] = {}

        def download(name: str, **options: Any) -> str:
            asked.update(options, name=name)
            return str(tmp_path)

        monkeypatch.setattr(hub, "snapshot_download", download)
        assert find_model("owner/some-model_1.5") == tmp_path
        assert asked["name"] == "owner/some-model_1.5"
        names = ["model.safetensors", "config.json", "vocab.txt", "pytorch_model.bin", "onnx/model.json", "train.py"]
        names += ["1_Pooling/config.json", "2_Dense/model.safetensors", "checkpoint-100/model.safetensors"]
        names += ["config_sentence_transformers.json", "chat_template.jinja"]
        kept = hub.utils.filter_repo_objects(
            names, allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
        )
        bi_encoder = ["1_Pooling/config.json", "2_Dense/model.safetensors", "config_sentence_transformers.json"]
        expected = ["model.safetensors", "config.json", "vocab.txt", *bi_encoder, "chat_template.jinja"]
        assert list(kept) == expected
        find_model("owner/name", code=True)
        kept = hub.utils.filter_repo_objects(names, allow_patterns=asked["allow_patterns"])
        assert "train.py" in kept

    def test_offline(self, hub: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
        with pytest.raises(RankwellError, match="owner/name: no such folder here, and the Hugging Face hub cannot be"):
            find_model("owner/name")

    @pytest.mark.parametrize(
        ("error", "problem"),
        [
            ("RepositoryNotFoundError", "owner/name: no such folder here, and no such model on the Hugging Face hub"),
            ("GatedRepoError", "owner/name: its owner asks you to log in"),
        ],
    )
    def test_not_there_or_not_for_all(
        self, hub: Any, monkeypatch: pytest.MonkeyPatch, error: str, problem: str
    ) -> None:
        kind = getattr(hub.errors, error)

        def refuse(*_: Any, **__: Any) -> str:
            raise kind.__new__(kind)

        monkeypatch.setattr(hub, "snapshot_download", refuse)
        with pytest.raises(RankwellError, match=problem):
            find_model("owner/name")

    def test_without_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(MissingExtraError, match=r"owner/name.*huggingface_hub: pip install 'rankwell\[models\]'"):
            find_model("owner/name")


def test_a_checkpoint_is_loaded_by_such_a_name(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rankwell_model_package").mkdir()
    (tmp_path / "rankwell_model_package" / "__init__.py").touch()
    (tmp_path / "rankwell_model_package" / "model").symlink_to(tiny_checkpoint)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_checkpoint("rankwell_model_package:model")[2].head == "two_logits"
