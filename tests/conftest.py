"""Fixtures shared by all tests."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import string
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from rankwell.core import native

if TYPE_CHECKING:
    from rankwell.inputs.tokenizer import Tokenizer
    from rankwell.rank.ranker import Ranker

# A slow machine is no failure.
settings.register_profile("rankwell", deadline=None)
settings.load_profile("rankwell")

# Tests compare to many digits, so they compute on the CPU; those of a GPU ask for it.
os.environ["RANKWELL_DEVICE"] = "cpu"

# Several processes of tests share the cores: threads of torch that wait sleep instead of keeping a core busy.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A small uncased WordPiece vocabulary: whole words of the usual kind, the pieces of the papers' out-of-vocabulary words
# (bogue, bogus, insouciantly, numeric), and the alphabet with its ## forms, so that any ASCII word has pieces.
_WORDS = """
the of and to in is a for on are as with by at from it an be this that was or not which have has had were will
how what who where when why which do does did can could should many much long large small best good new old first
bank money interest rate account loan insurance policy health life car home cost price pay cover claim company market
bee bees honey hive cluster winter warm wing flower plant garden tree leaf water river sea fish whale bird dog cat
city country london paris germany europe world north south people person man woman child king queen president
year day time hour number meaning mean define word language music song book film game team play player
body heart blood brain cell disease virus doctor drug test study research science energy power light sun moon star
run running walk drive train road bridge house stone iron gold oil coffee tea bread milk sugar salt food eat drink
""".split()
_PIECES = (
    "bog ##ue ##us ins ##ou ##cian ##tly nu ##meric ##s ##ing ##ed ##ly ##er ##tion ##12 ##bles trou ##able".split()
)


def find_chromium() -> str | None:
    """The browser of the page's tests. ``CHROMIUM`` names one that is not on the path."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C be tested where a background shell has its programs ignore it, and outputs on a new machine."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # What a test reads of a command's output does not depend on which test compiles first.
    native.LONG = math.inf


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say in the last line of a run, not only in its count of skips, that the page was not tried in a browser."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    if left_out := [one for one in skipped if "tests/serve/page" in one.nodeid]:
        reason = left_out[0].longrepr[2].removeprefix("Skipped: ")
        reporter.write_line(f"NOT TESTED: the web page ({len(left_out)} tests): {reason}", red=True)


def tiny_vocabulary() -> list[str]:
    """The tokens of the tiny model, in the order of their ids."""
    letters = string.ascii_lowercase + string.digits
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.punctuation]
    tokens += [*letters, *(f"##{letter}" for letter in letters), *_WORDS, *_PIECES]
    return list(dict.fromkeys(tokens))


@dataclass(frozen=True)
class Outcome:
    """The exit code of a command, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line of an error that the user can fix. Nothing else may have been printed."""
        assert (self.code, self.out, self.err.count("\n")) == (2, "", 1), self
        assert self.err.startswith("rankwell: ")
        return self.err.removeprefix("rankwell: ").removesuffix("\n")


@pytest.fixture
def rankwell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Outcome]:
    """Run ``rankwell ARGUMENTS`` in an empty folder."""
    from rankwell.cli.main import main

    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["rankwell", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return Outcome(int(stopped.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The public data sets, where they are present."""
    folder = Path(os.environ.get("RANKWELL_DATA", Path(__file__).parents[1].parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("the public data sets are not here; set RANKWELL_DATA to their folder")
    return folder


def flip(path: Path, byte: int, bit: int = 0) -> None:
    """Damage a file: change one bit."""
    content = bytearray(path.read_bytes())
    content[byte] ^= 1 << bit
    path.write_bytes(content)


def forget_checksums(folder: Path) -> None:
    """Make an index, store or model as a version without checksums wrote it."""
    for table in folder.rglob("checksums*"):
        table.unlink()
    for path in folder.rglob("index.json"):
        description = json.loads(path.read_text(encoding="utf-8"))
        description.pop("checksum", None)
        path.write_text(json.dumps(description), encoding="utf-8")


@pytest.fixture(scope="session")
def without_checksums() -> Callable[[Path], None]:
    """See :func:`forget_checksums`."""
    return forget_checksums


@pytest.fixture(scope="session")
def tiny_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny model's tokenizer: ``tokenizer.json``, ``tokenizer_config.json`` and ``vocab.txt``."""
    pytest.importorskip("tokenizers")
    from tokenizers.implementations import BertWordPieceTokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    tokens = tiny_vocabulary()
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    tokenizer = BertWordPieceTokenizer({token: number for number, token in enumerate(tokens)}, lowercase=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "BertTokenizer", "do_lower_case": true, "model_max_length": 512}\n', encoding="utf-8"
    )
    return folder


@pytest.fixture(scope="session")
def tokenizer(tiny_tokenizer: Path) -> Tokenizer:
    from rankwell.inputs.tokenizer import Tokenizer

    return Tokenizer.open(tiny_tokenizer)


@pytest.fixture(scope="session")
def tiny_models() -> ModuleType:
    """``bench/tiny_models.py``, which makes random checkpoints of every family."""
    pytest.importorskip("torch")
    path = Path(__file__).parents[1] / "bench" / "tiny_models.py"
    spec = spec_from_file_location("tiny_models", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True, scope="session")
def _any_processor() -> Iterator[None]:
    """No test computes in 16 bits only because this machine's processor is good at it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rankwell.models.devices.CPU_INFO", Path(os.devnull))
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    """No test waits for a disk, because none loses power; tests/faults counts what is synced and acts as if."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which raises for what is not open, too
        yield


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path) -> Path:
    """A folder with a random BERT classifier of two labels, as transformers saves it. Copy it to change it."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=len(tiny_vocabulary()),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=512,
        type_vocab_size=2,
        num_labels=2,
        # Far wider than BERT's 0.02, so that scores of different texts really differ.
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(20)
        model = transformers.BertForSequenceClassification(config).eval()
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    model.save_pretrained(folder)
    for file in tiny_tokenizer.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.fixture(scope="module")
def ranker(tiny_checkpoint: Path) -> Ranker:
    from rankwell.rank.ranker import Ranker

    return Ranker.from_pretrained(tiny_checkpoint)


def _with_one_head(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copied = tmp_path_factory.mktemp("one-head") / "tiny"
    shutil.copytree(folder, copied)
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "num_attention_heads": 1}))
    return copied


@pytest.fixture(scope="session")
def tiny_one_head(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    """The tiny checkpoint with one head, which is wide enough for int8."""
    return _with_one_head(tiny_checkpoint, tmp_path_factory)


@pytest.fixture(scope="session")
def tiny_bi_encoder(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    """The same, as an encoder without a head: a bi-encoder."""
    folder = tmp_path_factory.mktemp("bi-encoder") / "tiny"
    shutil.copytree(tiny_checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}))
    return folder


@pytest.fixture(scope="session")
def one_head_bi_encoder(tmp_path_factory: pytest.TempPathFactory, tiny_bi_encoder: Path) -> Path:
    """The same with one head, which is wide enough for int8."""
    return _with_one_head(tiny_bi_encoder, tmp_path_factory)


@pytest.fixture(scope="session")
def tiny_twin(tmp_path_factory: pytest.TempPathFactory, tiny_bi_encoder: Path) -> Path:
    """A ranker that begins as the tiny bi-encoder: twenty times the cosine, less a half, is all its score so far."""
    from rankwell.models.checkpoints.config import RankerConfig
    from rankwell.models.checkpoints.folders import (
        load_encoder,
        new_cross_encoder,
        save_checkpoint,
        start_as_bi_encoder,
    )

    encoder, _, tokenizer = load_encoder(tiny_bi_encoder)
    model = new_cross_encoder(encoder, 1, pooler=False, seed=1, similarity=20.0)
    start_as_bi_encoder(model)
    folder = tmp_path_factory.mktemp("twin") / "tiny"
    parts = {"template": {"name": "twin"}, "head": "score", "similarity": 20.0, "pooler": False}
    save_checkpoint(folder, model, tokenizer, RankerConfig(**parts))
    return folder


@pytest.fixture(scope="session")
def tiny_writer(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    """A query writer of random weights."""
    from rankwell.papers.doc2query.checkpoints import WriterConfig, load_writer, save_writer

    model, tokenizer, _ = load_writer(tiny_checkpoint, seed=2)
    folder = tmp_path_factory.mktemp("writer") / "tiny"
    save_writer(folder, model, tokenizer, WriterConfig(max_length=32, max_query=6))
    return folder


@pytest.fixture(scope="session")
def tiny_weigher(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Path:
    """A model of random weights that weighs tokens, and so gives every word another weight."""
    import torch

    from rankwell.papers.deepct.weighing import load_token_weights, save_token_weights

    model, tokenizer = load_token_weights(tiny_checkpoint, seed=4)
    with torch.no_grad():
        model.head.weight.mul_(4)
        model.head.bias.fill_(0.5)
    folder = tmp_path_factory.mktemp("weigher") / "tiny"
    save_token_weights(folder, model, tokenizer, 24)
    return folder


@pytest.fixture(scope="session")
def make_classifier(
    tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, tiny_tokenizer: Path
) -> Callable[[Sequence[str]], Path]:
    """Makes folders with random classifiers of these labels, as transformers saves them."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")

    def make(labels: Sequence[str]) -> Path:
        numbers = {label: number for number, label in enumerate(labels)}
        config = transformers.BertConfig.from_pretrained(
            tiny_checkpoint, id2label=dict(enumerate(labels)), label2id=numbers
        )
        folder = tmp_path_factory.mktemp("classifier") / "tiny"
        with torch.random.fork_rng():
            torch.manual_seed(5)
            transformers.BertForSequenceClassification(config).eval().save_pretrained(folder)
        for file in tiny_tokenizer.iterdir():
            shutil.copy(file, folder)
        return folder

    return make
