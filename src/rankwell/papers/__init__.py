"""The wings: a paper's system in a folder of its own, which registers its parts by name.

Nothing outside imports them. A part is imported when its name is first used (:mod:`rankwell.core.registry`), the way
the parts of any plugin are. Without a wing's folder and its lines here, everything else works as before.
"""

PARTS = {
    "stage options": {
        "distil": "rankwell.papers.mini.options",
        "filter": "rankwell.papers.mini.options",
        "average": "rankwell.papers.mini.options",
        "sdnet": "rankwell.papers.ccnu.options",
        "deepct": "rankwell.papers.deepct.options",
        "doc2query": "rankwell.papers.doc2query.options",
        "duo": "rankwell.papers.duobert.options",
        "pretrain": "rankwell.papers.drbert.options",
        "classify": "rankwell.papers.drbert.options",
        "denoise": "rankwell.papers.drbert.options",
    },
    "stage kind": {
        "distil": "rankwell.papers.mini.distil",
        "filter": "rankwell.papers.mini.filter",
        "average": "rankwell.papers.mini.average",
        "sdnet": "rankwell.papers.ccnu.stage",
        "deepct": "rankwell.papers.deepct.stage",
        "doc2query": "rankwell.papers.doc2query.stage",
        "duo": "rankwell.papers.duobert.stage",
        "pretrain": "rankwell.papers.drbert.pretrain",
        "classify": "rankwell.papers.drbert.query_types",
        "denoise": "rankwell.papers.drbert.denoise",
    },
    "ranker": {
        "sdnet": "rankwell.papers.ccnu.ranker",
        "duo": "rankwell.papers.duobert.ranker",
    },
    "checkpoint kind": {"classifier": "rankwell.papers.ccnu.entailment"},
    "template": {"duo": "rankwell.papers.duobert.ranker"},
    "source of types": {"model": "rankwell.papers.drbert.query_types"},
    "command": {
        "weigh": "rankwell.papers.deepct.command",
        "expand": "rankwell.papers.doc2query.command",
        "types": "rankwell.papers.drbert.command",
    },
}
"""The module that registers each part: by kind, then by name."""
