"""The analyser: words after UAX #29, lower case, possessives, stop words, Porter's stemmer as Lucene has it."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankwell.core.errors import RankwellError
from rankwell.corpus.analyser import LUCENE_STOP_WORDS, Analyzer, read_analyzer
from rankwell.corpus.languages import LANGUAGES, SEGMENTERS
from rankwell.corpus.records import Document
from rankwell.rank.answers import Match, match_texts
from rankwell.retrieve.index import Index

PLAIN = Analyzer.plain()
ENGLISH = Analyzer.english()
UNSTOPPED = Analyzer(stop_words=frozenset())


def words(text: str, analyzer: Analyzer = PLAIN) -> list[str]:
    return [word.text for word in analyzer.words(text)]


# Words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \t\n", []),
        ("…!? -- (.) ,;:' «»", []),
        ("Hello, world!", ["hello", "world"]),
        ("can't don't", ["can't", "don't"]),
        ("rock 'n' roll", ["rock", "n", "roll"]),
        ("'quoted' dogs'", ["quoted", "dogs"]),
        ("U.S. e.g. a..b", ["u.s", "e.g", "a", "b"]),
        ("3.14 1,000 1.000,5 3. ,5", ["3.14", "1,000", "1.000,5", "3", "5"]),
        ("1.a a.1 3,a a,b 1:2", ["1", "a", "a", "1", "3", "a", "a", "b", "1", "2"]),
        ("foo:bar foo: :bar a;b 1;2", ["foo:bar", "foo", "bar", "a", "b", "1;2"]),
        ("state-of-the-art", ["state", "of", "the", "art"]),
        ("MP3 4x4 b2b", ["mp3", "4x4", "b2b"]),
        ("foo_bar _x x_ __ _1", ["foo_bar", "_x", "x_", "_1"]),
        ("www.example.com/a?b=1", ["www.example.com", "a", "b", "1"]),
        ("me@example.org", ["me", "example.org"]),
        ("l’amour ‘x’", ["l’amour", "x"]),
        ("日本語", ["日", "本", "語"]),
        ("ひらがな", ["ひ", "ら", "が", "な"]),
        ("カタカナ テスト", ["カタカナ", "テスト"]),
        ("aカ9 中a中", ["a", "カ", "9", "中", "a", "中"]),
        ("𠀀𠀁", ["𠀀", "𠀁"]),
        ("e\u0301te\u0301 x\u0308\u0301y", ["e\u0301te\u0301", "x\u0308\u0301y"]),
        ("soft\u00adhyphen zero\u200dwidth", ["soft\u00adhyphen", "zero\u200dwidth"]),
        ("\u0301 x", ["x"]),
        ("I 😀 NY 👩‍🔬", ["i", "ny"]),
        ("ÀÉÎ Straße ΩΣ Жук İzmir", ["àéî", "straße", "ωσ", "жук", "izmir"]),
        ("한국어 שלום عربي १२३", ["한국어", "שלום", "عربي", "१२३"]),
        ("𐐀𐐁 𝐀", ["𐐨𐐩", "𝐀"]),
        ("one\0two", ["one", "two"]),
        ("\ufeffmark", ["mark"]),
        ("half \ud800 a pair", ["half", "a", "pair"]),
    ],
)
def test_words_are_cut_as_uax_29_says(text: str, expected: list[str]) -> None:
    assert words(text) == expected


ASCII_WORD = re.compile(r"(?:[A-Za-z0-9_]|(?<=[A-Za-z])[:.'](?=[A-Za-z])|(?<=[0-9])[,;.'](?=[0-9]))+")


def ascii_reference(text: str) -> list[tuple[str, int, int]]:
    """The same rules for ASCII, as one regular expression and a step for the possessive."""
    found = []
    for match in ASCII_WORD.finditer(text):
        word = re.sub(r"(?<=.)'[sS]\Z", "", match[0])
        if re.search("[A-Za-z0-9]", match[0]):
            found.append((word.lower(), match.start(), match.start() + len(word)))
    return found


ascii_text = st.one_of(
    st.text(st.characters(max_codepoint=127), max_size=80),
    st.text("aBs1_.':,; -", max_size=40),
    st.text("a'sS", max_size=9),
)


@settings(max_examples=300, deadline=None)
@given(ascii_text)
@example("s's 's a's's 1's _'s __'s")
def test_ascii_words_are_those_of_a_slow_reference(text: str) -> None:
    found = Analyzer(stemmer=None, stop_words=frozenset()).words(text)
    assert [(word.text, word.begin, word.end) for word in found] == ascii_reference(text)


def lower(text: str) -> str:
    """Lower case character by character; İ alone has two characters there and becomes a plain i."""
    return "".join("i" if character == "İ" else character.lower() for character in text)


any_text = st.text(
    st.one_of(st.characters(), st.characters(min_codepoint=0x10000), st.sampled_from("aBZ' .’1,_ÀΣİẞK中カ\u0301😀𐐀"))
)


@settings(max_examples=200, deadline=None)
@given(any_text, st.booleans())
def test_a_span_holds_the_word_in_characters(text: str, drop_possessive: bool) -> None:
    found = Analyzer(stemmer=None, stop_words=frozenset(), drop_possessive=drop_possessive).words(text)
    assert [word.text for word in found] == [lower(text[word.begin : word.end]) for word in found]
    ends = [0, *(word.end for word in found)]
    assert all(end <= word.begin < word.end for end, word in zip(ends, found, strict=False))


@settings(max_examples=200, deadline=None)
@given(any_text)
def test_every_letter_and_digit_is_in_a_word(text: str) -> None:
    covered = {i for word in PLAIN.words(text) for i in range(word.begin, word.end)}
    letters = {
        i for i, c in enumerate(text) if unicodedata.category(c) in ("Lu", "Ll", "Lo", "Nd") and ord(c) < 0x40000
    }
    assert letters <= covered


def test_a_single_word_of_ten_megabytes_is_cut_into_pieces_as_lucene_does() -> None:
    pieces = PLAIN.words("x" * 10_000_000)
    assert {len(piece.text) for piece in pieces[:-1]} == {255}
    assert sum(len(piece.text) for piece in pieces) == 10_000_000


@pytest.mark.parametrize("unit", ["é", "𐐨", "𐐨’", "é.", "1,", "1", "カ", "e\u0301", "x_", "ﬁ", "Ⱥ"])
def test_no_piece_is_longer_than_255_bytes(unit: str) -> None:
    text = unit * 2000
    sizes = [len(text[word.begin : word.end].encode()) for word in PLAIN.words(text)]
    assert all(247 < size <= 255 for size in sizes[:-1])
    assert 7 < len(sizes) < 80


def test_words_just_below_the_limit_stay_whole() -> None:
    assert words("x" * 255 + " " + "y" * 254 + " " + "é" * 127) == ["x" * 255, "y" * 254, "é" * 127]


# Possessives


@pytest.mark.parametrize("apostrophe", ["'", "’", "＇"])
def test_a_final_s_with_any_apostrophe_is_dropped(apostrophe: str) -> None:
    text = f"the bee{apostrophe}s BEE{apostrophe}S"
    found = UNSTOPPED.words(text)
    assert [(word.text, text[word.begin : word.end]) for word in found] == [
        (word.lower(), word) for word in ("the", "bee", "BEE")
    ]


@pytest.mark.parametrize(
    ("analyzer", "text", "terms"),
    [
        (ENGLISH, "it's", []),  # a possessive stop word
        (PLAIN, "bee's", ["bee's"]),
        (UNSTOPPED, "bees' s 's", ["bee", "s", "s"]),  # an apostrophe alone makes no possessive
        (ENGLISH, "ands", ["and"]),  # compared with the stop words before it is stemmed
        (PLAIN, "The Bees' possibly", ["the", "bees", "possibly"]),
    ],
)
def test_possessives_and_stop_words_have_their_order(analyzer: Analyzer, text: str, terms: list[str]) -> None:
    assert analyzer.terms(text) == terms


# Stop words


def test_stop_words_have_no_term_but_keep_their_place() -> None:
    found = ENGLISH.words("To BE or not, bee")
    terms = [("to", None), ("be", None), ("or", None), ("not", None), ("bee", "bee")]
    assert [(word.text, word.term) for word in found] == terms


def test_there_are_lucenes_33_stop_words() -> None:
    assert len(LUCENE_STOP_WORDS) == 33
    assert ENGLISH.terms(" ".join(LUCENE_STOP_WORDS)) == []


# Batches, settings


@settings(deadline=None)
@given(st.lists(any_text, max_size=8))
def test_a_batch_gives_what_its_texts_give_one_by_one(texts: list[str]) -> None:
    assert ENGLISH.terms_batch(texts) == [ENGLISH.terms(text) for text in texts]


@given(any_text)
@settings(deadline=None)
def test_terms_are_the_words_that_have_one(text: str) -> None:
    found = ENGLISH.words_batch([text], codes=True)[0]
    assert ENGLISH.terms(text) == [word.term for word in found if word.term is not None]


def test_words_do_not_run_from_one_text_into_the_next() -> None:
    assert PLAIN.terms_batch(["ab", "", "cd", "1,", "000"]) == [["ab"], [], ["cd"], ["1"], ["000"]]


def test_an_unknown_stemmer_is_named_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match="no stemmer is called 'klingon'"):
        Analyzer(stemmer="klingon")


class TestLanguages:
    @pytest.mark.parametrize(
        ("language", "one", "other"),
        [
            ("en", "the horses running", "a horse runs"),
            ("de", "Die Größe der Häuser", "grosse haus"),
            ("fr", "L’élève aime l'école", "eleves aimer ecoles"),
            ("es", "los niños y las niñas", "nino nina"),
            ("it", "dell'università", "universita"),
            ("ar", "الكِتَاب", "كتاب"),
            ("ru", "книги о собаках", "книга собака"),
            ("none", "The CAT", "the cat"),
        ],
    )
    def test_forms_of_a_word_meet(self, language: str, one: str, other: str) -> None:
        analyzer = Analyzer.of(language)
        assert analyzer.terms(one) == analyzer.terms(other) != []

    @pytest.mark.parametrize("language", sorted(LANGUAGES))
    def test_every_language_has_terms_and_survives_json(self, language: str) -> None:
        if LANGUAGES[language].words == "icu":
            pytest.importorskip("icu4py")
        analyzer = Analyzer.of(language)
        assert [word.text for word in analyzer.words("UNESCO 3.14")] == ["unesco", "3.14"]
        assert read_analyzer(analyzer.model_dump(mode="json"), "here") == analyzer
        stop_words = LANGUAGES[language].stop_words
        assert analyzer.terms(stop_words) == []
        assert len(set(stop_words.split())) == len(stop_words.split())

    def test_thai_words_are_found_with_their_places(self) -> None:
        pytest.importorskip("icu4py")
        text = "🐝 ประเทศไทยมีผึ้ง (bees)"
        words = Analyzer.of("th").words(text)
        assert [text[word.begin : word.end] for word in words] == ["ประเทศไทย", "มี", "ผึ้ง", "bees"]
        assert Analyzer.of("th").terms_batch(["", "ผึ้ง", "é" * 300]) == [[], ["ผึ้ง"], ["é" * 127]]

    @pytest.mark.parametrize("language", sorted(code for code, row in LANGUAGES.items() if row.words == "icu"))
    def test_half_a_surrogate_pair_is_no_word(self, language: str) -> None:
        pytest.importorskip("icu4py")
        words = Analyzer.of(language).words("\u200b\0\ud800bee ก\udfff ข")
        assert [(word.text, word.begin) for word in words] == [("bee", 3), ("ก", 7), ("ข", 10)]

    def test_a_plugin_can_find_the_words(self) -> None:
        SEGMENTERS.register("letters")(lambda text, language: iter(text))
        try:
            analyzer = Analyzer(segmenter="letters", stemmer=None, stop_words=frozenset())
            assert analyzer.terms("Ab, é") == ["a", "b", "é"]
            config = analyzer.model_dump(mode="json")
        finally:
            SEGMENTERS._parts.pop("letters")
        with pytest.raises(RankwellError, match="no segmenter is called 'letters'"):
            read_analyzer(config, "index.json")

    def test_an_unknown_language_is_named(self) -> None:
        with pytest.raises(RankwellError, match=r"no language is called 'xx' \(known: ar, .*zh"):
            Analyzer.of("xx")

    @pytest.mark.parametrize(
        ("text", "codes"),
        [
            ("Future.add_done_callback", "future add done callback"),
            ("HTTPServer readLine2 __init__", "http server read line2 init"),
            ("AirFlex-3000 airflex 3000", "air flex airflex-3000"),
            ("SKU-JA-10158, a/b2.", "sku-ja-10158 a/b2"),
            ("e.g. v3.14 don't ABC IRAs x_1 2024-05-01 well-known 1.5 a:b -4- A- 3 Öl_Ö", "öl ö"),
        ],
    )
    def test_codes_and_names_are_words_as_a_whole_and_in_parts(self, text: str, codes: str) -> None:
        analyzer = Analyzer.of("none")
        words, coded = analyzer.words(text), analyzer.words_batch([text], codes=True)[0]
        assert [word.text for word in coded if word not in words] == codes.split()
        assert [word for word in coded if word in words] == words
        assert analyzer.terms(text) == [word.term for word in coded]
        assert all(text[word.begin : word.end].lower() == word.text for word in coded)

    @pytest.mark.parametrize(
        ("text", "language"),
        [
            ("Der Hund und die Katze sind in dem Haus", "de"),
            ("le chat est dans la maison avec un chien", "fr"),
            ("東京の喫茶店は休みです", "ja"),
            ("北京的公司", "zh"),
            ("ประเทศไทยมีผึ้ง", "th"),
            ("the bees are in the hive and it is warm", None),
            ("x1 y2 z3", None),
            ("", None),
        ],
    )
    def test_an_evident_language_is_guessed(self, text: str, language: str | None) -> None:
        assert Analyzer.english().guess([text]) == language


def test_an_analyser_cannot_be_changed_and_equals_its_like() -> None:
    assert Analyzer.english() == Analyzer()
    assert Analyzer.english() != Analyzer.plain()
    with pytest.raises(ValueError, match="frozen"):
        Analyzer().stemmer = None


def test_settings_survive_json() -> None:
    analyzer = Analyzer(stemmer="german", stop_words=frozenset({"der", "die"}), drop_possessive=False)
    assert read_analyzer(analyzer.model_dump(mode="json"), "here") == analyzer


@pytest.mark.parametrize("config", [None, [], {"stemmer": "klingon"}, {"unknown": 1}, {"stop_words": 3}])
def test_settings_that_cannot_be_read_are_an_error_that_says_where(config: object) -> None:
    with pytest.raises(RankwellError, match=r"^index\.json: the analyser's settings cannot be read"):
        read_analyzer(config, "index.json")


class TestPairsOfCharacters:
    @pytest.mark.parametrize(
        ("text", "terms"),
        [
            ("東京タワー", ["東京", "東", "京タ", "京", "タワ", "タ", "ワー", "ワ", "ー"]),
            ("서울은 좋다", ["서울", "서", "울은", "울", "은", "좋다", "좋", "다"]),
            ("AI在北京3年，茶", ["ai", "在北", "在", "北京", "北", "京", "3", "年", "茶"]),
            ("cats 𠀀𠀁𠀂", ["cat", "𠀀𠀁", "𠀀", "𠀁𠀂", "𠀁", "𠀂"]),
            ("", []),
        ],
    )
    def test_runs_become_overlapping_pairs_and_single_characters(self, text: str, terms: list[str]) -> None:
        assert Analyzer(cjk_pairs=True).terms(text) == terms

    def test_a_run_ends_with_its_text(self) -> None:
        assert Analyzer(cjk_pairs=True).terms_batch(["東", "京", "東京"]) == [["東"], ["京"], ["東京", "東", "京"]]

    def test_highlighted_pairs_do_not_overlap(self) -> None:
        (matches,) = match_texts(Analyzer(cjk_pairs=True), "東京都", ["在東京都的"])
        assert matches == [Match(1, 3, 0), Match(3, 4, 2)]

    def test_an_index_keeps_them(self, tmp_path: Path) -> None:
        documents = [Document("a", "京東是一家公司"), Document("b", "東京是日本的首都")]
        Index.build(documents, tmp_path / "pairs", analyzer=Analyzer(cjk_pairs=True))
        Index.build(documents, tmp_path / "single")
        found = {name: Index.open(tmp_path / name).rank("東京") for name in ("pairs", "single")}
        assert found["pairs"].docids == ("b", "a")
        assert found["pairs"].scores[0] > 1.5 * found["pairs"].scores[1]
        assert found["single"].docids == ("a", "b")
        assert Index.open(tmp_path / "pairs").rank("首").docids == ("b",)


def test_turkish_words_are_found_whatever_the_case_of_their_i() -> None:
    analyzer = Analyzer.of("tr")
    assert analyzer.terms("Işık İstanbul") == analyzer.terms("ışık istanbul")
    assert analyzer.terms("IRAK") == analyzer.terms("Irak") == analyzer.terms("ırak")
