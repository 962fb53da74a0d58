"""Calls a service with the clients of other services, each as its own documentation shows it.

    python client_calls.py http://127.0.0.1:8000     prints a JSON object: client → "works" or what went wrong

Runs in an environment of the clients alone (``test_clients.py``); nothing of rankwell is imported.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

QUERY, TEXTS = "how do bees keep warm", ["The cluster shivers.", "Tea.", "A hive in winter."]
RANKER, ENCODER = "rerank-v3.5", "text-embedding-3-small"
CALLS: dict[str, Callable[[str], list[int]]] = {}
"""Client → a call that returns the texts' numbers, best first; embeddings return the numbers of their texts."""


def client(name: str) -> Callable[[Callable[[str], list[int]]], Callable[[str], list[int]]]:
    def register(call: Callable[[str], list[int]]) -> Callable[[str], list[int]]:
        CALLS[name] = call
        return call

    return register


@client("cohere ClientV2")
def cohere_v2(url: str) -> list[int]:
    import cohere

    answer = cohere.ClientV2("key", base_url=url).rerank(model=RANKER, query=QUERY, documents=TEXTS)
    return [row.index for row in answer.results]


@client("cohere Client (v1)")
def cohere_v1(url: str) -> list[int]:
    import cohere

    answer = cohere.Client("key", base_url=url).rerank(
        model=RANKER, query=QUERY, documents=TEXTS, return_documents=True
    )
    assert answer.results[0].document.text == TEXTS[answer.results[0].index]
    return [row.index for row in answer.results]


@client("cohere AsyncClientV2")
def cohere_async(url: str) -> list[int]:
    import cohere

    async def call() -> Any:
        return await cohere.AsyncClientV2("key", base_url=url).rerank(model=RANKER, query=QUERY, documents=TEXTS)

    return [row.index for row in asyncio.run(call()).results]


@client("langchain-cohere CohereRerank")
def langchain_cohere(url: str) -> list[int]:
    from langchain_cohere import CohereRerank

    compressor = CohereRerank(model=RANKER, base_url=url, cohere_api_key="key", top_n=len(TEXTS))
    return [row["index"] for row in compressor.rerank(TEXTS, QUERY)]


def _llama(rerank: Any) -> list[int]:
    from llama_index.core.schema import NodeWithScore, TextNode

    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in TEXTS]
    return [TEXTS.index(node.node.text) for node in rerank.postprocess_nodes(nodes, query_str=QUERY)]


@client("llama-index CohereRerank")
def llama_cohere(url: str) -> list[int]:
    from llama_index.postprocessor.cohere_rerank import CohereRerank

    return _llama(CohereRerank(api_key="key", model=RANKER, base_url=url, top_n=len(TEXTS)))


@client("llama-index TextEmbeddingInference")
def llama_tei(url: str) -> list[int]:
    from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

    return _llama(TextEmbeddingInference(base_url=url, top_n=len(TEXTS)))


@client("llama-index JinaRerank")
def llama_jina(url: str) -> list[int]:
    from llama_index.postprocessor.jinaai_rerank import JinaRerank

    return _llama(JinaRerank(api_key="key", model=RANKER, base_url=f"{url}/v1", top_n=len(TEXTS)))


def _haystack(ranker: Any) -> list[int]:
    from haystack import Document

    if hasattr(ranker, "warm_up"):
        ranker.warm_up()
    found = ranker.run(query=QUERY, documents=[Document(content=text) for text in TEXTS])
    return [TEXTS.index(document.content) for document in found["documents"]]


@client("Haystack CohereRanker")
def haystack_cohere(url: str) -> list[int]:
    from haystack.utils import Secret
    from haystack_integrations.components.rankers.cohere import CohereRanker

    return _haystack(CohereRanker(model=RANKER, api_key=Secret.from_token("key"), api_base_url=url, top_k=len(TEXTS)))


@client("Haystack JinaRanker")
def haystack_jina(url: str) -> list[int]:
    from haystack.utils import Secret
    from haystack_integrations.components.rankers.jina import JinaRanker

    return _haystack(
        JinaRanker(model=RANKER, api_key=Secret.from_token("key"), base_url=f"{url}/v1/rerank", top_k=len(TEXTS))
    )


def _litellm(model: str, base: str) -> list[int]:
    import litellm

    answer = litellm.rerank(model=model, query=QUERY, documents=TEXTS, api_base=base, api_key="key", top_n=len(TEXTS))
    return [row["index"] for row in answer.results]


for provider, path in {
    "cohere": "/v2/rerank",
    "jina_ai": "/v1/rerank",
    "hosted_vllm": "",
    "together_ai": "/v1",
    "voyage": "/v1/rerank",
    "huggingface": "",
}.items():

    def _call(url: str, provider: str = provider, path: str = path) -> list[int]:
        return _litellm(f"{provider}/{RANKER}", url + path)

    CALLS[f"LiteLLM {provider}"] = _call


@client("voyageai Client")
def voyage(url: str) -> list[int]:
    import voyageai

    answer = voyageai.Client(api_key="key", base_url=f"{url}/v1").rerank(QUERY, TEXTS, model=RANKER)
    return [row.index for row in answer.results]


@client("mixedbread Mixedbread")
def mixedbread(url: str) -> list[int]:
    from mixedbread import Mixedbread

    answer = Mixedbread(api_key="key", base_url=url).rerank(model=RANKER, query=QUERY, input=TEXTS)
    return [row.index for row in answer.data]


@client("rerankers APIRanker (cohere)")
def rerankers_cohere(url: str) -> list[int]:
    from rerankers.models.api_rankers import APIRanker

    ranker = APIRanker(RANKER, api_key="key", api_provider="cohere", url=f"{url}/v1/rerank", verbose=0)
    return [int(row.doc_id) for row in ranker.rank(query=QUERY, docs=TEXTS, doc_ids=list(range(len(TEXTS)))).results]


@client("openai embeddings")
def openai_embeddings(url: str) -> list[int]:
    import openai

    answer = openai.OpenAI(api_key="key", base_url=f"{url}/v1").embeddings.create(model=ENCODER, input=TEXTS)
    assert all(len(row.embedding) > 1 and isinstance(row.embedding[0], float) for row in answer.data)
    return [row.index for row in answer.data]


@client("openai models")
def openai_models(url: str) -> list[int]:
    import openai

    names = [model.id for model in openai.OpenAI(api_key="key", base_url=f"{url}/v1").models.list()]
    assert RANKER in names, names
    return list(range(len(TEXTS)))


def main() -> None:
    """Call every client and print what came of it."""
    warnings.simplefilter("ignore")
    os.environ |= {"CO_API_KEY": "key", "HF_TOKEN": "key", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # it would wait for a network
    found: dict[str, str] = {}
    for name, call in CALLS.items():
        try:
            order = call(sys.argv[1])
            found[name] = "works" if sorted(order) == list(range(len(TEXTS))) else f"returned {order}"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error)[:300]}"
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
