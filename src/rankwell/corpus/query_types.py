"""Query types: the kind of answer a query asks for, in MS MARCO's five labels, by rules that need no data.

    numeric        a number: when, how many, how much, a date, a price, a telephone number
    person         a person, or a group of them (a team, a company): who
    location       a place: where, what country, the capital of
    description    a definition, a reason, a way to do it, yes or no: why, how to, define, what is an atom
    entity         any other thing that has a name: what film, which disease

Three questions are asked in this order. Does a telling phrase occur, with or without a question word ("cost of …",
"… definition")? Which question word is there? And after *what* or *which*: what is the head noun? "What is the longest
river in Asia" asks for a river, and :data:`HEAD_NOUNS` knows that rivers are locations. The labels follow the public
question classification data (see :data:`COARSE_TYPES`), on which the rules are measured in ``docs/recipes.md``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import dropwhile, takewhile
from pathlib import Path

from rankwell.core.registry import Registry
from rankwell.corpus.records import Query

TYPE_SOURCES: Registry[Callable[[Path, Sequence[str], str | None], list[str]]] = Registry("source of types")
"""What gives texts their types by other means than rules: ``model`` takes a folder, texts and a device."""
QUERY_TYPES = ("location", "numeric", "person", "description", "entity")

# The coarse labels of the question classification data (Li and Roth, 2002), in MS MARCO's words.
COARSE_TYPES = {
    "ABBR": "description",
    "DESC": "description",
    "ENTY": "entity",
    "HUM": "person",
    "LOC": "location",
    "NUM": "numeric",
}

# Phrases that decide the type anywhere in the text; the first one counts. They are matched to lower-cased words.
PHRASES = (
    ("description", r"what .*(stands?|short) for"),
    ("description", r"(abbreviation|acronym|initials?) (of|for)|(define|definition|meaning|means|mean)$"),
    ("description", r"^(define|defining|definition|meaning|explain|describe|difference|causes? of|effects? of)"),
    ("description", r"(is|are|was) (the )?(meaning|definition|difference|purpose|function|significance|origin)s? "),
    ("description", r"what (do|does|did) .* (mean|do|look like|sound like|taste like|consist of|refer to)$"),
    ("description", r"what (makes?|made|causes?|caused|happens?|happened|is it like|else|to|if|about|can|should)"),
    ("description", r"^(\w+ ){0,2}(benefits|symptoms|signs|treatment|advantages|pros|uses|history) (of|for)"),
    ("entity", r"fear of|^(types|kinds|list|examples|names) of|(another|other) (name|word|term)s? for"),
    ("numeric", r"how (many|much|long|old|far|tall|big|large|high|deep|fast|often|wide|hot|cold|heavy|late|soon)"),
    ("numeric", r"how (small|thick|close|near|short|loud|dense|rich|early|quickly|frequently|few|slow|strong|warm)"),
    ("numeric", r"(phone|telephone|fax|contact|helpline|customer service) number|(routing|zip|area|postal) code"),
    ("numeric", r"^(average|normal|typical|maximum|minimum|total)? ?(cost|price|salary|wage|amount|population)"),
    ("numeric", r"(boiling|melting|freezing) point|(cost|costs|price|prices|salary|population|temperature|calories)$"),
    ("location", r"^(weather|directions|map|address) |county is|(location|address|whereabouts)$"),
)

# The type that a question word alone suggests.
QUESTION_WORDS = {
    "when": "numeric",
    "who": "person",
    "whom": "person",
    "whose": "person",
    "where": "location",
    "why": "description",
    "how": "description",
}

# Words that start a yes/no question; the expected answer is an explanation.
YES_NO_WORDS = frozenset("is are was were do does did can could should will would has have had may must am".split())

# The type that the head noun (singular) of a what or which question suggests.
HEAD_NOUNS = {
    "numeric": """
        age altitude amount angle average birthdate birthday budget calorie capacity century chance circumference code
        cost count date day deadline debt decade deficit degree density depth diameter dimension distance dosage dose
        duration elevation equivalent expectancy fare fee fraction frequency gdp gestation grade growth height
        horsepower hour income interest iq latitude length level limit longitude magnitude mass measurement mileage
        minute month mortality number odds pay payment percent percentage period population pressure price probability
        proportion quantity radius range rank rate rating ratio reactivity record revenue salary score season share
        size span speed statistic sum tax temperature time toll total value velocity voltage volume wage wavelength
        weight wingspan worth year yield zip
    """,
    "person": """
        actor actress admiral adviser agency airline ambassador anchor archbishop architect army artist assassin
        astronaut astronomer athlete attorney author aviator ballplayer band baron bishop boss boxer boy brother
        candidate captain cartoonist celebrity ceo chairman champion chancellor character chef chief choreographer
        clan coach college comedian comedienne commander company composer conductor conglomerate congressman
        corporation cosmonaut couple court cowboy criminal critic culture daughter department designer detective
        dictator diplomat director doctor drummer duo dynasty economist editor emperor employer engineer explorer
        family father figure firm force founder friend gang general gentleman girl golfer governor group guitarist guy
        hero heroine host hostess husband identity industrialist inventor investigator job jockey journalist judge
        justice kid killer king lady laureate lawyer leader league maker man manager manufacturer marshal mayor member
        men mentor minister mistress monarch monster mother murderer musician name nanny narrator newsman nickname
        novelist nun occupation officer official opponent orchestra organisation organization owner painter partner
        party peasant people person personality philosopher photographer physician pianist pilot pirate pitcher player
        playwright poet politician pope prankster premier presenter president priest prince princess producer
        profession professional professor prophet pseudonym publisher puppet quarterback queen relative ruler sailor
        saint scholar scientist sculptor secretary senator sergeant settler sheriff sibling singer sister skater
        soldier son spokesman spokesperson spouse spy star statesman student surgeon suspect swimmer teacher team
        tenant tribe trio twin tycoon union university villain vocalist wife winner woman women worker wrestler writer
    """,
    "location": """
        address airport arch archipelago area avenue base bay beach birthplace body border boundary bridge building
        canal canyon capital castle cathedral cave cemetery center centre church city coast colony constellation
        continent country county dam desert destination direction district empire equator estate factory falls field
        forest galaxy gallery garden geyser glacier gulf habitat harbor harbour headquarters hemisphere hill home
        hometown hospital hotel house island isle isthmus kingdom lake land landmark library locale location manor
        metropolis mile monument moon mount mountain museum nation nationality neighborhood neighbourhood ocean
        outpost palace parish park peak peninsula place planet point pole port prairie principality prison
        province region republic reservoir resort restaurant river road room sea seaport shore site skyscraper spot
        stadium state store strait street strip suburb summit temple territory theater theatre tomb tower town
        township tunnel valley venue village volcano waterfall waterway website zone zoo
    """,
    "description": """
        advantage aim amendment basis belief benefit cause challenge characteristic complication concept condition
        consequence contribution definition difference distinction drawback effect evidence example explanation fact
        factor feature function goal history idea impact importance intent issue law lifestyle meaning mechanism
        motive motto nature origin outcome philosophy principle problem procedure process prophecy purpose quality
        reaction reason relationship requirement responsibility result role rule sign significance similarity source
        stage step story structure symptom task text theory thing tip treatment use
    """,
    "entity": """
        ability album animal article attraction award ball battle beer beverage bird birthstone board bomb bone book
        bowl brand breed camera car card cartoon cereal chapter chemical cocktail color colour comedy comic
        commandment commodity competition component compound computer condiment contest course creature crime crop
        currency dance device dinosaur disaster disease dish disorder dog drama drink drug dye element engine event
        exercise experiment export fabric fear fever film fish flag flavor flavour flower food format formula fowl
        fruit fuel game gas gem gland god goddess grain holiday hormone horse ingredient insect instrument invention
        jewel juice language leaf letter line liquid liquor machine magazine mammal maneuver manoeuvre mascot material
        meal meat medal medicine medium metal method mineral movie muscle music musical newspaper novel nut nutrient
        object opera operetta ore organ painting pet phobia phrase plant play poem prize product program programme
        protein publication quote race religion resource revolution rhyme rock rodent sauce saying scale school
        science sculpture sequel series shape ship show slogan snake soap software song sound soup spice sport stone
        subject substance suit symbol symphony syndrome system tale technique term test tool toy trademark tradition
        translation transportation treaty tree trophy truck tune unit vaccine vegetable vehicle vessel virus vitamin
        war way weapon weather wine wonder word work
    """,
}

_TYPE_OF_NOUN = {noun: label for label, nouns in HEAD_NOUNS.items() for noun in nouns.split()}
# One expression for all is quicker than one each. A group's name may not repeat, so each has its number.
_PHRASES = re.compile(
    rf"\b(?:{'|'.join(f'(?P<{label}_{n}>{pattern})' for n, (label, pattern) in enumerate(PHRASES))})\b"
)
_WORDS = re.compile(r"[a-z0-9]+(?:[.'’-](?!s\b)[a-z0-9]+)*|['’]s\b")
# Number of characters that are read: the type shows early, and a pasted page must not take minutes.
_READ = 1000
_COPULAS = frozenset("is are was were be been 's ’s has".split())
_ARTICLES = frozenset("the a an this that these those his her its their my your our some any".split())
_POSSESSIVES = frozenset(["'s", "’s"])
_AGENT_ENDINGS = ("ist", "ists", "ian", "ians", "man", "men", "woman", "women", "ster", "eer", "ess")
# Words that end a noun phrase: a preposition, an auxiliary or another verb that often follows, another question word.
_PHRASE_ENDS = frozenset(
    """
    in on at to for from by with about into between among after before during over under through as than without
    and or that which who whom whose where when why how is are was were be been being do does did has have had can
    could will would should may might must you i we they he she it there made used called named known found written
    """.split()
)
# Nouns that only say "one of these", or what a thing is called: the noun after *of* tells more, where it is known.
_POINTERS = frozenset("name names nickname part parts example examples list one some title".split())


def rule_type(question: str) -> str | None:
    """The type of a question, or None if no rule applies.

    >>> [rule_type(q) for q in ("Who wrote Emma?", "average cost of a bee hive", "What is an atom?", "blue heron")]
    ['person', 'numeric', 'description', None]
    """
    words = _WORDS.findall(question[:_READ].lower())
    if telling := _PHRASES.search(" ".join(words)):
        return (telling.lastgroup or "").partition("_")[0]
    for place, word in enumerate(words):
        if word in QUESTION_WORDS:
            return QUESTION_WORDS[word]
        if word in ("what", "which", "whats") or (word == "name" and place == 0):
            return _type_after_what(words[place + 1 :])
    if words and words[0] in YES_NO_WORDS:
        return "description"
    # Not a question: "largest cathedral in world" is a noun phrase, and its last word decides.
    phrase = list(takewhile(lambda word: word not in _PHRASE_ENDS and word != "of", words))
    return _known(phrase[-1]) if phrase else None


def rule_types(queries: Iterable[Query]) -> dict[str, str]:
    """The types of queries by id; those that no rule applies to have none."""
    return {query.qid: label for query in queries if (label := rule_type(query.text)) is not None}


def _type_after_what(words: list[str]) -> str:
    """By the head noun: "what **river** is …", "what is the longest **river** in …"; "what is a river" has none."""
    copula = bool(words) and words[0] in _COPULAS
    rest = list(dropwhile(_COPULAS.__contains__, words)) if copula else words[words[:1] == ["of"] :]
    article = rest[0] if rest and rest[0] in _ARTICLES else ""
    phrase = list(takewhile(lambda word: word not in _PHRASE_ENDS, rest[bool(article) :]))
    label = _head(phrase, copula)
    if not copula:
        return label or "entity"
    if label == "numeric":
        return label
    # "What is a river", "what is Nero": a definition. "What is Nero 's wife": a wife.
    named = any(word in _POSSESSIVES for word in phrase[:-1])
    if article in ("a", "an") or not (article or named):
        return "description"
    return label or "entity"


def _head(phrase: list[str], copula: bool) -> str | None:
    """The type of the phrase's head noun: before *of*, or after it if the noun before is too general."""
    if "of" in phrase:
        cut = phrase.index("of")
        before, after = phrase[:cut], [word for word in phrase[cut + 1 :] if word not in _ARTICLES]
        if before and before[-1] in _POINTERS:
            return _head(after, copula) or _known(before[-1])
        phrase = before
    known = [_known(word) for word in phrase]
    if copula:  # the last known noun: "the world 's longest suspension bridge"
        return next((label for label in reversed(known) if label), None)
    # The phrase may run on into a verb: the first known noun, or the one after it ("car company").
    first = next((place for place, label in enumerate(known) if label), None)
    if first is None:
        return None
    return known[first + 1] if first + 1 < len(known) and known[first + 1] else known[first]


def _known(noun: str) -> str | None:
    """The type of a noun, singular or plural, in :data:`HEAD_NOUNS`."""
    label = _TYPE_OF_NOUN.get(noun)
    if label is None and noun.endswith("s"):
        label = _TYPE_OF_NOUN.get(noun[:-1]) or _TYPE_OF_NOUN.get(noun.removesuffix("ies") + "y")
    if label is None and len(noun) > 5 and noun.endswith(_AGENT_ENDINGS):
        return "person"
    return label
