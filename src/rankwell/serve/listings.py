"""The models that are served, as rankwell and other services list them."""

from __future__ import annotations

from importlib.metadata import version

from rankwell.serve.formats import Answer
from rankwell.serve.service import Service


def own_list(service: Service) -> Answer:
    """``/models``: the models with all that is known of them."""
    state = service.state
    default = state.default.name if state.default else None
    return {"default": default, "models": [model.described() for model in state.models.values()]}


def openai_list(service: Service) -> Answer:
    """``/v1/models``: the names of models and their aliases, in OpenAI's format."""
    state = service.state
    names = [*state.models, *filter(None, [state.encoder]), *state.aliases]
    about = {"object": "model", "created": service.started, "owned_by": "rankwell"}
    return {"object": "list", "data": [{"id": name, **about} for name in dict.fromkeys(names)]}


def tei_info(service: Service) -> Answer:
    """``/info``: the default model, in the format of Text Embeddings Inference."""
    model = service.model(service.state, None)
    return {
        "model_id": model.name,
        "model_dtype": model.ranker.engine.precision,
        "model_type": {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}},
        "max_input_length": model.ranker.template.max_length,
        "max_batch_tokens": service.engine.limit,
        "max_client_batch_size": service.limits.documents,
        "max_concurrent_requests": service.limits.preparing,
        "version": version("rankwell"),
    }
