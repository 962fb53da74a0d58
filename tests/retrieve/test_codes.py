"""Codes, names in code and ids: found whole, by their parts, and first."""

from __future__ import annotations

import pytest

from rankwell import Document, Index, Query

SHOP = [
    Document("SKU-JA-10158", "Rain jacket by NordPeak, the NordPeak-3000, with airflex lining, 3000 mm."),
    Document("SKU-JA-10159", "AirFlex-1000 shoe. AirFlex AirFlex 3000 3000 airflex."),
    Document("SKU-JA-10160", "A running shoe called AirFlex-3000, light and washable, for long distances in summer."),
    Document("4711", "call add_done_callback on the future; it runs later"),
    Document("bees", "Tea is hot, 4711 times."),
    Document("notes/tea.md", "Water boils."),
]


@pytest.fixture(scope="module")
def shop() -> Index:
    return Index.build(SHOP)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("AirFlex-3000", "SKU-JA-10160"),
        ("airflex-3000", "SKU-JA-10160"),
        ("nordpeak-3000", "SKU-JA-10158"),
        ("SKU-JA-10158", "SKU-JA-10158"),
        ("sku-ja-10159", "SKU-JA-10159"),
        ("add_done_callback", "4711"),
        ("callback", "4711"),
        ("bees", "bees"),
        ("notes/tea.md", "notes/tea.md"),
        ("4711", "bees"),
    ],
)
def test_codes_and_ids_come_first(shop: Index, query: str, first: str) -> None:
    assert shop.search(query).docids[0] == first


def test_a_name_is_found_in_any_case_and_by_its_parts(shop: Index) -> None:
    for query in ("airflex", "AIRFLEX", "AirFlex"):
        assert set(shop.search(query).docids) == {"SKU-JA-10158", "SKU-JA-10159", "SKU-JA-10160"}
    assert shop.search("SKU-JA-10158", k=1).docids == ("SKU-JA-10158",)
    run = shop.search([Query("a", "SKU-JA-10158"), Query("b", "nothing here"), Query("c", "AirFlex-3000")])
    assert (list(run), run["c"].docids[0]) == (["a", "c"], "SKU-JA-10160")


def test_filters_and_deleted_documents_hold_for_ids(shop: Index) -> None:
    assert not shop.search("SKU-JA-10158", filter="id != 'SKU-JA-10158'").docids
    assert shop.search("AirFlex-3000", filter="id != 'SKU-JA-10160'").docids[0] == "SKU-JA-10159"
    assert not shop.search("AirFlex-3000 -shoe -jacket", syntax=True).docids
    index = Index.build(SHOP)
    index.delete("SKU-JA-10158")
    assert not index.search("SKU-JA-10158").docids


def test_codes_change_no_length_and_so_no_other_score() -> None:
    plain = Index.build([Document("a", "bees AirFlex 3000"), Document("b", "bees make honey")])
    codes = Index.build([Document("a", "bees AirFlex-3000"), Document("b", "bees make honey")])
    assert dict(plain.search("bees honey")) == dict(codes.search("bees honey"))
    assert codes.search("x AirFlex-3000").scores[0] > plain.search("x AirFlex-3000").scores[0]
