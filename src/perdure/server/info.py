"""`GET /info`, `/openapi.json` and `/docs`: what this server is and which operations it has.

The page of `/docs` is made here from the OpenAPI document: FastAPI's own loads scripts from a CDN.
"""

from __future__ import annotations

import html
from functools import cache
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Response
from fastapi.openapi.utils import get_openapi

from perdure.server.json_values import dump

SECURITY = {
    "token": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "bearer": {"type": "http", "scheme": "bearer"},
}
ERROR = {
    "description": "An error: one sentence that says what happened and what to do.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["detail"],
                "properties": {"detail": {"type": "string"}},
            }
        }
    },
}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2rem; border-bottom: 1px solid #ccc }
dt { font-family: ui-monospace, monospace; margin-top: .8rem }
dt b { display: inline-block; min-width: 4.5rem } dd { margin: 0 0 0 4.5rem; color: #444 }
"""


@cache
def _versions() -> dict[str, str]:
    return {"version": version("perdure"), "langgraph_py_version": version("langgraph")}


class Description:
    """Describes the routes of one runtime."""

    def __init__(self, router: APIRouter) -> None:
        self._router = router
        self._document: dict[str, Any] | None = None

    async def info(self) -> dict[str, Any]:
        """Versions, and what this server can do."""
        flags = {"assistants": True, "crons": True, "langsmith": False}
        host = {"kind": "self-hosted", "project_id": None, "revision_id": None}
        return {**_versions(), "flags": flags, "host": host, "server": "perdure"}

    async def openapi(self) -> Response:
        """Every operation, as an OpenAPI document."""
        return Response(dump(self.document), media_type="application/json")

    async def docs(self) -> Response:
        """Every operation, as a page."""
        headers = {"Content-Security-Policy": POLICY}
        return Response(_page(self.document), media_type="text/html", headers=headers)

    @property
    def document(self) -> dict[str, Any]:
        if self._document is None:
            found = get_openapi(
                title="perdure",
                version=_versions()["version"],
                routes=self._router.routes,
                description="LangGraph's Agent Server API on durable runs, and perdure's own.",
            )
            _describe_errors(found)
            self._document = found
        return self._document


def _describe_errors(document: dict[str, Any]) -> None:
    """Describe our errors instead of FastAPI's, and the credentials."""
    document["security"] = [{}, *({name: []} for name in SECURITY)]
    document.setdefault("components", {})["securitySchemes"] = SECURITY
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"].get("schemas", {}).pop(name, None)
    for operations in document.get("paths", {}).values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            operation["responses"]["4XX"] = ERROR
            operation["responses"]["5XX"] = ERROR


def _page(document: dict[str, Any]) -> bytes:
    sections: dict[str, list[str]] = {}
    for path, operations in document.get("paths", {}).items():
        for method, operation in operations.items():
            text = operation.get("description") or operation.get("summary") or ""
            line = f"<dt><b>{method.upper()}</b> {html.escape(path)}</dt>"
            line += f"<dd>{html.escape(text.split(chr(10) * 2)[0])}</dd>"
            for tag in operation.get("tags") or ["other"]:
                sections.setdefault(str(tag), []).append(line)
    title = f"perdure {html.escape(document['info']['version'])}"
    body = "".join(
        f"<h2>{html.escape(tag)}</h2><dl>{''.join(lines)}</dl>" for tag, lines in sections.items()
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style><h1>{title}</h1>"
        '<p>The OpenAPI document is <a href="openapi.json">openapi.json</a>.</p>'
        f"{body}</html>"
    ).encode()
