"""A newcomer's first hour with a shop, notes and judgments: the 35 stops of a trial, by the commands that a user types.

    python bench/first_hour.py                      # with the rankwell beside this Python
    python bench/first_hour.py --rankwell PATH --out transcript.txt

The shop has 500 products in three languages, with codes, ratings and an empty description; the notes have front matter,
spaces and an empty page; the judgments are one csv with the queries' words. Every command runs in one empty folder, in
a shell (``first_hour.tsv``). A stop is *gone* if its output is what was wanted, *answered* if a message or page says
what to do instead, and else *still there*, with what was missing; then the exit status is 1.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

from harness import ROOT, make_parser

THINGS = {
    "en": ("Waterproof jacket", "Hiking boots", "Family tent", "Travel kettle", "Bluetooth speaker", "Camping knife"),
    "de": ("Wasserdichte Jacke", "Wanderschuhe", "Familienzelt", "Reisekocher", "Lautsprecher", "Kochmesser"),
    "fr": ("Veste étanche", "Chaussures de marche", "Tente familiale", "Bouilloire", "Enceinte", "Couteau"),
}
KINDS = ("Jackets", "Shoes", "Tents", "Kitchen", "Audio", "Kitchen")
SAYS = {
    "en": "{} by {} for long days outside, in {} weather",
    "de": "{} von {} für lange Tage draußen, bei {} Wetter",
    "fr": "{} de {} pour les longues journées, par temps {}",
}
BRANDS, WEATHER = ("AirFlex", "NordPeak", "Casa", "Lumo", "Trail"), ("wet", "cold", "hot", "windy", "mild", "grey")
COLUMNS = ["sku", "name", "description", "price", "category", "brand", "date", "lang", "stock", "rating", "tags"]
NOTES = {
    "work/vacation policy.md": "---\ntitle: Vacation policy\ntags: [hr]\n---\n\nEverybody has **thirty** days.\n",
    "home/sourdough.md": "# Sourdough\n\nFeed the starter, wait, [bake](https://bread.example).\n",
    "home/party 🎉.md": "# Party\n\nBring a cake 🎉 and candles.\n",
    "daily/empty.md": "",
    "long.md": "# Everything\n\n"
    + "\n\n".join(f"Chapter {n} is about the river, the boat and the bank." for n in range(900)),
}
JUDGED = [
    ("rain jacket", 0),
    ("boots for walking", 1),
    ("tent for a family", 2),
    ("boil water", 3),
    ("music outside", 4),
]
PRELUDE = """exec 2>&1
in_python() {
  python3 -W ignore -c "from rankwell import *; index = Index.open('products'); system = System.of_index(index); $1"
}
serving() {
  RANKWELL_WRITING_KEY=k rankwell serve $1 --port PORT > serve.log 2>&1 & server=$!
  for i in $(seq 300); do curl -sf URL/ready > /dev/null && break; kill -0 $server || break; sleep 0.2; done
  eval "$2"; kill $server; wait $server
}
ask() { curl -s URL/search -d "$1"; }
put() { curl -s -X PUT -H 'Authorization: Bearer k' URL/documents -d "$1"; }
"""


def write_data() -> None:
    """The shop, the notes and the judgments."""
    kinds = list(product(range(6), WEATHER, THINGS, BRANDS))[:500]
    with open("products.csv", "w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS)
        rows.writeheader()
        for number, (thing, weather, lang, brand) in enumerate(kinds):
            name = THINGS[lang][thing]
            text = SAYS[lang].format(name, f"{brand}-{1000 + number % 9 * 500}", weather) if number != 7 else ""
            more = (
                f"{9 + number % 90}.90",
                KINDS[thing],
                brand,
                f"2024-0{1 + number % 9}-11",
                lang,
                number % 50,
                3 + number % 3,
            )
            row = (f"SKU-JA-{10000 + number}", name, text, *more, "sale;new")
            rows.writerow(dict(zip(COLUMNS, row, strict=True)))
    for name, text in NOTES.items():
        Path("notes", name).parent.mkdir(parents=True, exist_ok=True)
        Path("notes", name).write_text(text)
    Path("judged").mkdir()
    Path("judged/collection.csv").write_bytes(Path("products.csv").read_bytes())
    own = {
        thing: f"SKU-JA-{10000 + number}"
        for number, (thing, _, lang, _) in reversed([*enumerate(kinds)])
        if lang == "en"
    }
    pairs = [f"{words} in {weather} weather,{own[thing]},1" for (words, thing), weather in product(JUDGED, WEATHER)]
    Path("judged/qrels.csv").write_text("\n".join(["query,document,grade", *pairs]) + "\n")
    Path("clicked").mkdir()
    Path("clicked/collection.csv").write_bytes(Path("products.csv").read_bytes())
    Path("clicked/clicks.csv").write_text("query,url,position,clicked\nrain jacket,SKU-JA-10000,1,1\n")
    Path("priced.csv").write_text("name,price\nTent,9\nBoots,8\n")
    Path("changed.csv").write_text("art,label,about\n1,New tent,dry\n")
    Path("new.csv").write_text(f"{','.join(COLUMNS)}\nSKU-NEW,Solar lamp,Light,9,Audio,Lumo,2024-01-01,en,1,5,new\n")


def missing(stop: dict[str, str], output: str) -> str | None:
    """What a stop's output lacks, or has and should not."""
    for pattern in stop["says"].split(" ;; "):
        if not re.search(pattern, output, re.DOTALL):
            return f"nothing like {pattern!r}"
    found = re.search(f"Traceback|{stop['never']}" if stop["never"] else "Traceback", output)
    return f"found {found[0]!r}" if found else None


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rankwell", type=Path, default=Path(sys.executable).with_name("rankwell"))
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--out", type=Path, default=Path("first-hour.txt"), help="file of the transcript")
    chosen = parser.parse_args()
    there, out = [], chosen.out.absolute()
    path = f"{chosen.rankwell.absolute().parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "80", "ROOT": str(ROOT)}
    with open(Path(__file__).with_suffix(".tsv"), newline="", encoding="utf-8") as file:
        stops = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    with tempfile.TemporaryDirectory() as folder, open(out, "w", encoding="utf-8") as transcript:
        os.chdir(folder)
        write_data()
        for stop in stops:
            begin = time.perf_counter()
            typed = (PRELUDE + stop["command"]).replace("URL", "localhost:PORT").replace("PORT", str(chosen.port))
            stop["says"] = stop["says"].replace("PORT", str(chosen.port))
            done = subprocess.run(
                ["bash", "-c", typed], env=environment, stdout=subprocess.PIPE, text=True, check=False
            )
            problem = missing(stop, done.stdout)
            there += [stop["number"]] * (problem is not None)
            told = f"still there: {problem}" if problem else stop["solved"]
            print(f"{stop['number']:>2} {stop['stop']}: {told} ({time.perf_counter() - begin:.1f} s)", flush=True)
            transcript.write(f"# {stop['number']} {told}\n$ {stop['command']}\n{done.stdout.rstrip()}\n\n")
            transcript.flush()
        os.chdir("/")
    print(f"{len(stops)} stops, {len(there)} still there: {', '.join(there) or 'none'}")
    sys.exit(bool(there))


if __name__ == "__main__":
    main()
