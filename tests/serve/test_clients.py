"""The real clients of other services get along with this one (``make test-clients``).

They need packages that are not among the project's, and so an environment of their own, in the folder that
``RANKWELL_ENVIRONMENTS`` names.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.serve.test_description import PLACE, installed

from rankwell.serve.state import Sources

pytestmark = pytest.mark.skipif(not PLACE, reason="RANKWELL_ENVIRONMENTS names no folder to install into")
PACKAGES = (
    "cohere langchain-cohere litellm voyageai mixedbread openai rerankers[api] haystack-ai cohere-haystack "
    "jina-haystack llama-index-postprocessor-cohere-rerank llama-index-postprocessor-tei-rerank "
    "llama-index-postprocessor-jinaai-rerank"
)


def test_clients_work_with_another_address(
    live: Callable[..., Any], sources: Sources, tiny_bi_encoder: Path, tmp_path: Path
) -> None:
    programs = installed("clients", *PACKAGES.split())
    encoder = shutil.copytree(tiny_bi_encoder, tmp_path / "finder")
    aliases = {"rerank-v3.5": "tiny", "text-embedding-3-small": "finder"}
    search = {"hybrid": 0.5, "encoder": encoder}
    service = live(replace(sources, search=search, aliases=aliases))
    calls = Path(__file__).with_name("client_calls.py")
    command = [programs / "python", calls, f"http://127.0.0.1:{service.port}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    found = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert {name: result for name, result in found.items() if result != "works"} == {}
    assert len(found) >= 18
