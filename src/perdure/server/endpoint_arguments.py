"""The arguments of an endpoint, read from a request as FastAPI has described them.

FastAPI's own solver looks at every parameter anew for each request, which costs as much as the
endpoint of a short one. What it finds is known beforehand for most: a parameter of the path that is
any text, a query that is empty. For the rest its functions are called, so values and errors are the
same.
"""

from __future__ import annotations

from email.message import Message
from functools import lru_cache
from typing import Any

from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import request_body_to_args, request_params_to_args
from fastapi.exceptions import RequestValidationError
from pydantic_core import PydanticUndefined
from starlette.requests import Request

from perdure.server.context import KEY, api


class EndpointArguments:
    """Reads the arguments of one endpoint."""

    def __init__(self, dependant: Dependant) -> None:
        self._dependant = dependant
        self._api_names = [one.name for one in dependant.dependencies if one.name is not None]
        self._checked_path = [
            one
            for one in dependant.path_params
            if one.field_info.annotation is not str or one.field_info.metadata
        ]
        self._defaults: dict[str, Any] | None = None
        infos = [one.field_info for one in dependant.query_params]
        if not any(info.is_required() or info.validate_default for info in infos):
            self._defaults = {one.name: one.get_default() for one in dependant.query_params}

    @classmethod
    def of(cls, dependant: Dependant, *, embed_body: bool) -> EndpointArguments | None:
        """None: the endpoint has parameters that only FastAPI's solver knows how to get."""
        names = ("websocket", "http_connection", "response", "background_tasks", "security_scopes")
        is_odd = (
            any(getattr(dependant, f"{name}_param_name") for name in names)
            or any(one.call is not api for one in dependant.dependencies)
            or any(one.alias != one.name for one in dependant.path_params)
            or bool(dependant.cookie_params)
            or len(dependant.body_params) > 1
            or embed_body
        )
        return None if is_odd else cls(dependant)

    async def read(self, request: Request) -> dict[str, Any]:
        """The arguments by their names. Raises `RequestValidationError`, and `ApiError` for a body
        that cannot be read."""
        asked = self._dependant
        errors: list[Any] = []
        found: dict[str, Any] = {**request.path_params}
        body = await _body(request) if asked.body_params else None
        for one in self._checked_path:
            found[one.name], wrong = one.validate(found[one.name], {}, loc=("path", one.name))
            errors += wrong
        if self._defaults is not None and not request.scope["query_string"]:
            found |= self._defaults
        else:
            values, wrong = request_params_to_args(asked.query_params, request.query_params)
            found |= values
            errors += wrong
        if asked.header_params:
            values, wrong = request_params_to_args(asked.header_params, request.headers)
            found |= values
            errors += wrong
        for one in asked.body_params:
            if body is PydanticUndefined:
                values, wrong = await request_body_to_args([one], body, embed_body_fields=False)
                found |= values
            else:
                found[one.name], wrong = one.validate(body, {}, loc=("body",))
            errors += wrong
        if errors:
            raise RequestValidationError(errors, body=body)
        for name in self._api_names:
            found[name] = request.scope[KEY]
        if asked.request_param_name:
            found[asked.request_param_name] = request
        return found


async def _body(request: Request) -> Any:
    """The body as FastAPI hands it to its validators: JSON if it says that it is, else bytes."""
    data = await request.body()
    if not data:
        return PydanticUndefined
    return await request.json() if _is_json(request.headers.get("content-type", "")) else data


@lru_cache(maxsize=64)
def _is_json(content_type: str) -> bool:
    """Whether a body of this content type is read as JSON."""
    if not content_type:
        return False
    message = Message()
    message["content-type"] = content_type
    subtype = message.get_content_subtype()
    is_json = subtype == "json" or subtype.endswith("+json")
    return message.get_content_maintype() == "application" and is_json
