"""The drafts' own schemas, which a schema may refer to.

In: a URI of the standard. Out: the document, from the package ``jsonschema-specifications``; nothing is
fetched. Each is looked through once per process.
"""

from __future__ import annotations

from functools import lru_cache

from vllm_guided.frontends.json_schema.drafts import LATEST, draft_of
from vllm_guided.frontends.json_schema.resources import Source


@lru_cache(maxsize=64)
def metaschema(uri: str) -> Source | None:
    """The document of the standard under ``uri`` (without a fragment), ``http`` or ``https`` alike."""
    if "://json-schema.org/draft" not in uri:
        return None
    # Only here: the package reads all of its files when it is imported.
    from jsonschema_specifications import REGISTRY

    for name in (uri, uri.replace("https://", "http://"), uri.replace("http://", "https://")):
        found = REGISTRY.get(name)
        if found is not None:
            source = Source(found.contents, name, draft_of(found.contents, LATEST, name))
            source.index()  # before others see it
            return source
    return None
