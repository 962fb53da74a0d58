"""The paths of the HTTP API: a router for each group, and what a request brings to all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.routing import APIRoute

from rankwell.corpus.sources import as_id
from rankwell.serve.bodies import (
    ApiError,
    BodyReader,
    json_response,
    parse,
    parse_documents,
    parse_events,
    sends_key,
    shutting_down,
    validated,
    within,
)
from rankwell.serve.describe import SEARCH_PARAMETERS, STYLE, docs_page
from rankwell.serve.formats import (
    Answer,
    Body,
    CohereRerank,
    EmbeddingsRequest,
    Explain,
    MixedbreadRerank,
    Rerank,
    ScoreRequest,
    Search,
    TeiEmbed,
    TeiRerank,
    VoyageRerank,
    embeddings_answer,
    search_fields,
)
from rankwell.serve.service import Service

Work = Callable[[Any, float, Answer], Coroutine[Any, Any, Any]]
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class Call:
    """A request: the service that answers it, the reader of its body, and ``about``, its line of the log."""

    def __init__(self, request: Request):
        self.request = request
        self.service: Service = request.app.state.service
        self.reader: BodyReader = request.app.state.reader
        self.about: Answer = request.scope["state"]["about"]

    async def read(self) -> bytes:
        """The body, within the service's limits."""
        raw = await self.reader.read(self.request)
        self.about["bytes"] = len(raw)
        return raw

    async def answer(
        self,
        shape: type[Body | EmbeddingsRequest] | None,
        work: Work,
        parse: Callable[[bytes], dict[str, Any]] = parse,
    ) -> Response:
        """Read a body, check it, and do the work within its deadline. Without ``shape``, its fields tell the format."""
        arrived = time.monotonic()
        if self.service.draining:
            raise shutting_down()
        fields = parse(await self.read())
        body = validated(shape or rerank_shape(fields), fields)
        del fields
        limits = self.service.limits
        deadline = arrived + min(body.timeout_ms or limits.default_timeout_ms, limits.most_timeout_ms) / 1000
        doing = work(body, deadline, self.about)
        return json_response(await within(self.request, doing, deadline - time.monotonic(), self.service.metrics))

    async def score(self, body: Rerank, deadline: float, about: Answer) -> Any:
        """The scores of a body's texts, in its format."""
        return body.answer(await self.service.rerank(body, deadline, about, self.request.scope["state"]["request_id"]))


Called = Annotated[Call, Depends()]


def rerank_shape(fields: dict[str, Any]) -> type[Rerank]:
    """The format of a re-ranking request, by its fields."""
    if ("documents" in fields) == ("texts" in fields):
        raise ApiError(422, "validation", "body: expected either documents (Cohere's format) or texts (TEI's)")
    if "texts" in fields:
        return TeiRerank
    return VoyageRerank if "top_k" in fields else CohereRerank


def get(router: APIRouter, path: str, **options: Any) -> Callable[[Endpoint], Endpoint]:
    """Answer GET, and HEAD, which the description leaves out."""

    def add(endpoint: Endpoint) -> Endpoint:
        router.head(path, include_in_schema=False)(endpoint)
        return router.get(path, **options)(endpoint)

    return add


ranking = APIRouter(tags=["ranking"])


@ranking.post("/rerank")
@ranking.post("/v1/rerank", include_in_schema=False)
@ranking.post("/v2/rerank", include_in_schema=False)
async def rerank(call: Called) -> Response:
    """Rank the given texts by their relevance to a query, in the format of Cohere, Jina, Voyage or TEI."""
    return await call.answer(None, call.score)


@ranking.post("/v1/reranking")
async def reranking(call: Called) -> Response:
    """Rank the given texts by their relevance to a query, in Mixedbread's format."""
    return await call.answer(MixedbreadRerank, call.score)


@ranking.post("/score")
@ranking.post("/v1/score", include_in_schema=False)
async def scores(call: Called) -> Response:
    """Score texts for a query, in vLLM's format."""
    return await call.answer(ScoreRequest, call.score)


@ranking.post("/v1/embeddings")
async def embeddings(call: Called) -> Response:
    """The vectors of texts, in OpenAI's format."""

    async def work(body: EmbeddingsRequest, deadline: float, about: Answer) -> Answer:
        return embeddings_answer(body, *await call.service.embed(body))

    return await call.answer(EmbeddingsRequest, work)


@ranking.post("/embed")
async def embed(call: Called) -> Response:
    """The vectors of texts, in TEI's format."""

    async def work(body: TeiEmbed, deadline: float, about: Answer) -> list[list[float]]:
        vectors: list[list[float]] = (await call.service.embed(body))[1].tolist()
        return vectors

    return await call.answer(TeiEmbed, work)


@get(ranking, "/search", openapi_extra={"parameters": SEARCH_PARAMETERS})
async def search_by_address(call: Called) -> Response:
    """Search with the query in the address: ?q=…&k=10; other fields have the names they have in a body."""
    parameters = dict(call.request.query_params)
    return await call.answer(Search, call.service.search, lambda raw: search_fields(parameters))


@ranking.post("/search")
async def search(call: Called) -> Response:
    """Search the index: the first stage (BM25, or hybrid search), the re-ranker, or both side by side."""
    return await call.answer(Search, call.service.search)


@ranking.post("/events")
async def events(call: Called) -> Response:
    """Log what a user did with the results of a search, such as a click: one event, or a list of them."""
    if call.service.draining:
        raise shutting_down()
    sent = parse_events(await call.read(), call.service.limits.documents)
    return json_response(call.service.log_events(sent, call.about))


@get(ranking, "/documents/{docid:path}")
async def document(call: Called, docid: str) -> Response:
    """A document of the index by its id."""
    return json_response(call.service.document(as_id(docid)))


@ranking.post("/explain")
async def explain(call: Called) -> Response:
    """Explain the score of a query and a document."""

    async def work(body: Explain, deadline: float, about: Answer) -> Answer:
        return await call.service.explain(body, about)

    return await call.answer(Explain, work)


def check_writer(request: Request) -> None:
    """Raise unless the request may change the index."""
    writing_key = request.app.state.writing_key
    if writing_key is None:
        line = "this service does not write; start it with a writing key (RANKWELL_WRITING_KEY)"
        raise ApiError(403, "forbidden", line)
    if not sends_key(dict(request.scope["headers"]), writing_key):
        raise ApiError(401, "unauthorized", "missing or wrong writing key", {"WWW-Authenticate": "Bearer"})
    if request.app.state.service.draining:
        raise shutting_down()


documents = APIRouter(tags=["documents"], dependencies=[Depends(check_writer)])


@documents.put("/documents")
async def put_documents(call: Called) -> Response:
    """Add documents, replacing those with the same ids: a JSON object for each, one per line."""
    return json_response(await call.service.write(parse_documents(await call.read()), call.about))


@documents.delete("/documents/{docid:path}")
async def delete_document(call: Called, docid: str) -> Response:
    """Delete a document; one that is not in the index is no error."""
    return json_response(await call.service.write([as_id(docid)], call.about))


service = APIRouter(tags=["service"])


@service.post("/reload")
async def reload(call: Called) -> Response:
    """Reopen index and models; requests under way finish on the old ones."""
    if call.request.app.state.key is None:
        raise ApiError(403, "forbidden", "reloading over HTTP needs a service with a key; send SIGHUP instead")
    return json_response({**await call.service.reload(), "key": True})


@get(service, "/models")
async def models(call: Called) -> Response:
    """The models served."""
    state = call.service.state
    default = state.default.name if state.default else None
    return json_response({"default": default, "models": [model.described() for model in state.models.values()]})


@get(service, "/v1/models")
async def listed(call: Called) -> Response:
    """The models served and their aliases, in OpenAI's format."""
    state = call.service.state
    names = dict.fromkeys([*state.models, *filter(None, [state.encoder]), *state.aliases])
    facts = {"object": "model", "created": call.service.started, "owned_by": "rankwell"}
    return json_response({"object": "list", "data": [{"id": name, **facts} for name in names]})


@get(service, "/info")
async def info(call: Called) -> Response:
    """The default model, in TEI's format."""
    model, limits = call.service.model(call.service.state, None), call.service.limits
    labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    described = {
        "model_id": model.name,
        "model_dtype": model.ranker.engine.precision,
        "model_type": {"reranker": labels},
        "max_input_length": model.ranker.template.max_length,
        "max_batch_tokens": call.service.engine.limit,
        "max_client_batch_size": limits.documents,
        "max_concurrent_requests": limits.preparing,
        "version": version("rankwell"),
    }
    return json_response(described)


@get(service, "/ready")
async def ready(call: Called) -> Response:
    """Whether the service accepts requests, what it serves, and its limits."""
    facts = {**call.service.ready(), "key": call.request.app.state.key is not None}
    return json_response(facts, 503 if call.service.draining else 200)


@get(service, "/health")
async def health(call: Called) -> Response:
    """The process is alive; the precision of its models."""
    return json_response({"status": "ok", "precision": call.service.precision()})


@get(service, "/metrics", response_class=PlainTextResponse)
async def metrics(call: Called) -> Response:
    """Metrics for Prometheus."""
    return Response(call.service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


description = APIRouter(include_in_schema=False)


@get(description, "/openapi.json")
async def openapi(request: Request) -> Response:
    """The description of the API."""
    return json_response(request.app.state.description)


@get(description, "/docs")
async def docs(request: Request) -> Response:
    """The description as a page."""
    return HTMLResponse(docs_page(request.app.state.description, str(request.base_url).rstrip("/")))


@get(description, "/docs.css")
async def style() -> Response:
    """The page's style, in a separate file: the content security policy allows no inline style."""
    return Response(STYLE, media_type="text/css")


ROUTERS = (ranking, documents, service, description)


def methods_of_paths() -> dict[str, str]:
    """The methods of each path, as the header Allow names them."""
    methods: dict[str, set[str]] = {}
    for router in ROUTERS:
        for route in router.routes:
            if isinstance(route, APIRoute):
                methods.setdefault(route.path, set()).update(route.methods or ())
    return {path: ", ".join(sorted(names)) for path, names in methods.items()}
