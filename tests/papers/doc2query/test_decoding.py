"""Writing queries: against decoding without a cache, and transformers' own search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankwell.core.errors import RankwellError
from rankwell.inputs.reader import Reader
from rankwell.models.batch import Placer
from rankwell.models.spec import EncoderConfig
from rankwell.papers.doc2query.checkpoints import WriterConfig, load_writer, save_writer
from rankwell.papers.doc2query.decoding import DecodingTokens, Writer, WritingOptions, join_pieces, sample
from rankwell.papers.doc2query.writer import Decoder, Memory, passage_grid

PAD, CLS, SEP = 0, 1, 2
SPECIAL = DecodingTokens(CLS, SEP, (PAD, CLS))
TEXTS = ["the bees keep warm in winter", "tea", "", "a bank lends money to people", "iron and stone", "whale"]


def make_decoder(vocabulary: int, seed: int = 0, spread: float = 0.5) -> Decoder:
    """A random decoder; the wider ``spread``, the surer it is of its pieces."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        decoder = Decoder(EncoderConfig(vocabulary, 16, 2, 2, 32, max_position_embeddings=16)).eval()
        for parameter in decoder.parameters():
            torch.nn.init.normal_(parameter, std=spread)
    return decoder.requires_grad_(False)


def some_passages(decoder: Decoder, count: int) -> list[Memory]:
    real = torch.ones(count, 1, 1, 4, dtype=torch.bool)
    real[::2, ..., 3] = False
    return decoder.remember(torch.randn(count, 4, 16, generator=torch.Generator().manual_seed(1)), real)


def one_passage(memories: list[Memory], number: int) -> list[Memory]:
    return [memory.take(torch.tensor([number])) for memory in memories]


def next_log_p(decoder: Decoder, passages: list[Memory], prefix: list[int]) -> Any:
    """Log probabilities of the piece after ``prefix``, all of it computed anew, under the rules of writing."""
    states = decoder.states(torch.tensor([[CLS, *prefix]]), passages)
    logits = decoder.logits(states[0, -1])
    logits[list(SPECIAL.banned)] = -torch.inf
    if not prefix:
        logits[SEP] = -torch.inf
    return torch.log_softmax(logits, dim=0)


def test_kept_keys_give_what_computing_anew_gives() -> None:
    decoder = make_decoder(20)
    passages = some_passages(decoder, 3)
    numbers = torch.rand(3, 2, 6, generator=torch.Generator().manual_seed(7))
    found = sample(decoder, passages, SPECIAL, WritingOptions(top_k=4), numbers)
    for passage in range(3):
        for query in range(2):
            prefix: list[int] = []
            for step in range(6):
                log_p = next_log_p(decoder, one_passage(passages, passage), prefix)
                best, ids = log_p.topk(4)
                shares = best.exp() / best.exp().sum()
                place = int(np.searchsorted(shares.cumsum(0).numpy(), float(numbers[passage, query, step]), "right"))
                prefix.append(int(ids[min(place, 3)]))
                if prefix[-1] == SEP:
                    break
            expected = prefix + [SEP] * (6 - len(prefix))
            assert found[passage, query].tolist() == expected


def test_drawn_pieces_have_the_model_s_frequencies() -> None:
    decoder = make_decoder(12, spread=0.3)
    passages = some_passages(decoder, 1)
    draws = 20_000
    numbers = torch.rand(1, draws, 1, generator=torch.Generator().manual_seed(3))
    found = sample(decoder, passages, SPECIAL, WritingOptions(top_k=5), numbers)[0, :, 0]
    log_p = next_log_p(decoder, passages, [])
    best, ids = log_p.topk(5)
    shares = (best.exp() / best.exp().sum()).numpy()
    counted = np.array([(found == token).sum().item() for token in ids.tolist()]) / draws
    assert counted.sum() == 1
    # Four standard deviations.
    np.testing.assert_array_less(np.abs(counted - shares), 4 * np.sqrt(shares * (1 - shares) / draws) + 1e-9)
    # A higher temperature is flatter.
    hot = sample(decoder, passages, SPECIAL, WritingOptions(top_k=5, temperature=5.0), numbers)[0, :, 0]
    assert (hot == ids[0]).float().mean() < counted[0]


def test_no_query_is_empty_and_none_holds_a_banned_piece() -> None:
    decoder = make_decoder(6, spread=0.05)
    passages = some_passages(decoder, 5)
    numbers = torch.rand(5, 40, 5, generator=torch.Generator().manual_seed(3))
    found = sample(decoder, passages, SPECIAL, WritingOptions(top_k=6), numbers)
    assert not (found[:, :, 0] == SEP).any()
    assert not torch.isin(found, torch.tensor([PAD, CLS])).any()
    # After its end, a query has nothing but ends.
    ended = (found == SEP).int().cummax(dim=2).values.bool()
    assert (found[ended] == SEP).all()
    assert ended[:, :, -1].any()
    assert not ended[:, :, -1].all()


@pytest.fixture(scope="module")
def written(tiny_checkpoint: Path) -> Any:
    """A random writer that ends its queries now and then."""
    model, tokenizer, _ = load_writer(tiny_checkpoint, seed=2)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
        model.decoder.output_bias[tokenizer.special.sep] += 4.0
    return model.requires_grad_(False), tokenizer


def make_writer(written: Any, max_length: int = 32, budget: int | None = None, **options: Any) -> Writer:
    model, tokenizer = written
    return Writer(
        model, tokenizer, max_length, WritingOptions(**{"max_query": 10, **options}), device="cpu", budget=budget
    )


def test_a_passage_s_queries_do_not_depend_on_its_batch(written: Any) -> None:
    keys = [f"d{number}" for number in range(len(TEXTS))]
    tokenizer = written[1]
    together = make_writer(written, n=3).write(tokenizer.encode(TEXTS), keys)
    assert [len(queries) for queries in together] == [3] * len(TEXTS)
    assert len({tuple(queries) for queries in together}) == len(TEXTS)
    by_two = make_writer(written, n=3, budget=16).write(tokenizer.encode(TEXTS[::-1]), keys[::-1])[::-1]
    alone = [make_writer(written, n=3).write(tokenizer.encode([t]), [k])[0] for t, k in zip(TEXTS, keys, strict=True)]
    assert together == by_two == alone
    # They do depend on the seed, and on the passage's key.
    assert make_writer(written, n=3, seed=2).write(tokenizer.encode(TEXTS), keys) != together
    assert make_writer(written, n=3).write(tokenizer.encode(TEXTS[:1]), ["other"])[0] != together[0]


def test_passages_that_are_through_are_left_out_without_a_trace(written: Any) -> None:
    """Writers with and without the others' short queries beside them: see `sample`, which drops finished passages."""
    model, tokenizer = written
    sequences = Reader.of_texts(tokenizer, 32).lay_out({"query": tokenizer.encode(TEXTS)}).sequences
    slots, real = map(torch.from_numpy, passage_grid(sequences.ends))
    passages = model.read(*Placer(torch.device("cpu"), "full")(sequences), slots, real)
    special, options = DecodingTokens.of(tokenizer), WritingOptions(top_k=20)
    numbers = torch.rand(len(TEXTS), 2, 10, generator=torch.Generator().manual_seed(1))
    whole = sample(model.decoder, passages, special, options, numbers)
    lengths = (whole != special.end).sum(dim=2).amax(dim=1)
    assert lengths.min() < lengths.max()
    for number in range(len(TEXTS)):
        own = sample(model.decoder, one_passage(passages, number), special, options, numbers[number : number + 1])
        assert torch.equal(own[0], whole[number])


def test_windows_share_the_queries_of_a_long_passage(written: Any) -> None:
    tokenizer = written[1]
    long = " ".join(["bees honey hive flower river bridge stone iron"] * 3)
    writer = make_writer(written, max_length=16, n=4)
    queries, short = writer.write(tokenizer.encode([long, "tea"]), ["long", "short"])
    assert len(short) == 4
    windows = len(make_writer(written, max_length=16, n=1).write(tokenizer.encode([long]), ["long"])[0])
    assert windows == 3  # one for each window, though one was asked for
    assert len(queries) == 4
    # A short passage's queries do not care what is written beside it.
    assert writer.write(tokenizer.encode(["tea"]), ["short"]) == [short]


def test_greedy_queries_are_what_transformers_finds(written: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model, tokenizer = written
    save_writer(tmp_path / "writer", model, tokenizer, WriterConfig(max_length=32))
    reference = transformers.EncoderDecoderModel.from_pretrained(tmp_path / "writer").eval()
    special = DecodingTokens.of(tokenizer)
    ids = torch.tensor([[special.begin, *tokenizer.encode(TEXTS[:1]).ids.tolist(), special.end]])
    theirs = reference.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        num_beams=1,
        max_new_tokens=10,
        min_new_tokens=1,
        bad_words_ids=[[token] for token in special.banned],
    )[0, 1:].tolist()
    ours = make_writer(written, n=1, top_k=1).write(tokenizer.encode(TEXTS[:1]), ["d"])[0]
    assert ours == [join_pieces(tokenizer.token_names([t for t in theirs if t not in (special.end, PAD)]))]


def test_pieces_are_joined_to_text() -> None:
    assert join_pieces(["can", "i", "use", "co", "##br", "##a", "?"]) == "can i use cobra?"
    assert join_pieces(["what", "'", "s", "a", "401", "(", "k", ")", "-", "plan"]) == "what's a 401 (k)-plan"
    assert join_pieces([]) == ""


def test_options_that_mean_nothing_are_refused() -> None:
    for wrong in ({"n": 0}, {"top_k": 0}, {"temperature": 0.0}):
        with pytest.raises(RankwellError):
            WritingOptions(**wrong)


def test_out_of_memory_halves_the_batch_even_when_its_rows_are_limited(
    written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"d{number}" for number in range(len(TEXTS))]
    pieces = written[1].encode(TEXTS)
    expected = make_writer(written, n=3).write(pieces, keys)
    writer = make_writer(written, n=3, budget=1 << 20)
    writer._compute.lanes = 1  # as on a GPU
    write, sizes = writer._write_batch, []

    def scarce(sequences: Any, names: Any, n: int) -> Any:
        sizes.append(len(sequences))
        if len(sizes) == 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return write(sequences, names, n)

    monkeypatch.setattr(writer, "_write_batch", scarce)
    with pytest.warns(UserWarning, match="out of GPU memory; continuing with"):
        assert writer.write(pieces, keys) == expected
    assert sizes[0] == len(TEXTS)
    assert all(size < len(TEXTS) for size in sizes[1:])
