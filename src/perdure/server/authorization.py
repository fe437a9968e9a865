"""Who calls, and what they may do: a token with its scopes, or a user of `langgraph_sdk.Auth`.

The `authenticate` handler is called with the parameters it names. Only the most specific `@auth.on`
handler is called: for the resource and action, the resource, the action, or the global one. None
and True allow, False is 403, a dict is `Filters` on metadata. A handler may change `value`: what it
adds to the metadata of a new thread is stored.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from perdure.commands.tokens import Scope as Scope
from perdure.errors import BadArgument, Error
from perdure.server.errors import ApiError

EVERY_SCOPE = frozenset(Scope)


@dataclass(frozen=True)
class Caller:
    """The caller of a request."""

    identity: str | None = None
    """The name of the token, or the identity from the `authenticate` handler. None: unknown."""
    scopes: frozenset[Scope] = EVERY_SCOPE
    user: Any = None
    """The user object of `langgraph_sdk.Auth` handlers."""
    permissions: tuple[str, ...] = ()
    """Permissions from the `authenticate` handler."""
    is_token: bool = False
    """Whether it sent a perdure token: then its scopes decide, and no `@auth.on` handler."""
    until_invalid: Callable[[], Coroutine[Any, Any, None]] | None = None
    """For a token: waits until it has expired or been revoked."""
    configurable: dict[str, Any] = field(default_factory=dict)
    """What a run that this caller starts has in `config["configurable"]`."""


ANYONE = Caller()
"""The caller of a server that requires no credentials."""


USER_SCOPES = frozenset({Scope.READ, Scope.START, Scope.ANSWER})
"""What an authenticated user may do, if the `@auth.on` handlers allow it."""
ADMIN_PERMISSION = "perdure:admin"
"""The permission that lets a user call the operator routes."""
PARAMETERS: dict[str, Callable[[Request], Any]] = {
    "request": lambda request: request,
    "body": lambda request: request.json(),
    "path": lambda request: request.scope["path"],
    "method": lambda request: request.method,
    "path_params": lambda request: dict(request.path_params),
    "query_params": lambda request: dict(request.query_params),
    "headers": lambda request: dict(request.scope["headers"]),
    "authorization": lambda request: request.headers.get("authorization"),
}
"""What an `authenticate` handler may ask for, by the names of its parameters."""


class User(dict[str, Any]):
    """A user that a handler returned as a string or a mapping. Its keys are also attributes."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        identity = fields["identity"]
        defaults = {"is_authenticated": True, "display_name": identity, "permissions": []}
        super().__init__({**defaults, **fields})

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"The user has no {name!r}.") from None


@dataclass(frozen=True)
class Filters:
    """Conditions on metadata that must all hold: `{"owner": "ada"}`, `{"owner": {"$eq": "ada"}}`,
    `{"team": {"$contains": "ada"}}`, `{"$or": [...]}`."""

    conditions: Mapping[str, Any]

    def match(self, metadata: Mapping[str, Any] | None) -> bool:
        return _holds(self.conditions, metadata or {})


def _holds(conditions: Any, metadata: Mapping[str, Any]) -> bool:
    if not isinstance(conditions, Mapping):
        raise _bad_filter(f"a {type(conditions).__name__}")
    for key, wanted in conditions.items():
        if key in ("$or", "$and"):
            if not isinstance(wanted, list | tuple) or not wanted:
                raise _bad_filter("$or or $and without a list")
            combined = any if key == "$or" else all
            fits = combined(_holds(one, metadata) for one in wanted)
        else:
            fits = _fits(metadata.get(key), wanted)
        if not fits:
            return False
    return True


def _fits(value: Any, wanted: Any) -> bool:
    if not isinstance(wanted, Mapping):
        return bool(value == wanted)
    for operator, operand in wanted.items():
        if operator == "$eq":
            fits = value == operand
        elif operator == "$contains":
            held = value if isinstance(value, list | tuple | set) else ()
            several = isinstance(operand, list | tuple | set)
            fits = all(one in held for one in (operand if several else [operand]))
        else:
            raise _bad_filter(str(operator))
        if not fits:
            return False
    return True


def _bad_filter(part: str) -> Error:
    return Error(
        f"An @auth.on handler returned a filter with {part}; use values, $eq, $contains, $or, $and."
    )


class AuthHandlers:
    """The handlers of one `langgraph_sdk.Auth`."""

    def __init__(self, auth: Any) -> None:
        """Raises `BadArgument` if it is not an `Auth`, or its handler has an unknown parameter."""
        from langgraph_sdk import Auth

        if not isinstance(auth, Auth):
            raise BadArgument(f"auth must be a langgraph_sdk.Auth, not {type(auth).__name__}.")
        self._auth = auth
        self._authenticate = authenticate_handler(auth)
        self._wanted = frozenset() if self._authenticate is None else _wanted(self._authenticate)

    @property
    def authenticates(self) -> bool:
        """Whether there is an `authenticate` handler."""
        return self._authenticate is not None

    async def authenticate(self, request: Request) -> Caller:
        """The caller, as identified by the `authenticate` handler. Raises `ApiError`."""
        if self._authenticate is None:
            raise ApiError(401, "No authenticate handler is registered.")
        arguments: dict[str, Any] = {}
        for name in self._wanted:
            argument = PARAMETERS[name](request)
            arguments[name] = await argument if inspect.isawaitable(argument) else argument
        identified = await self._call(lambda handler: handler(**arguments), self._authenticate)
        user, fields = _as_user(identified)
        permissions = tuple(str(one) for one in getattr(user, "permissions", None) or ())
        identity = str(user.identity)
        scopes = frozenset(Scope) if ADMIN_PERMISSION in permissions else USER_SCOPES
        configurable = {
            "langgraph_auth_user": fields,
            "langgraph_auth_user_id": identity,
            "langgraph_auth_permissions": list(permissions),
            "user_id": identity,
        }
        return Caller(identity, scopes, user, permissions, configurable=configurable)

    async def authorize(
        self, caller: Caller, resource: str, action: str, value: dict[str, Any]
    ) -> Filters | None:
        """The filters of the most specific handler. Raises 403 if it refuses."""
        from langgraph_sdk import Auth

        handler = on_handler(self._auth, resource, action)
        if handler is None:
            return None
        user = caller.user or User({"identity": caller.identity or "", "is_authenticated": False})
        context: Any = Auth.types.AuthContext
        ctx = context(
            permissions=list(caller.permissions), user=user, resource=resource, action=action
        )
        answer = await self._call(lambda one: one(ctx=ctx, value=value), handler)
        if answer is None or answer is True:
            return None
        if answer is False:
            raise ApiError(403, "Forbidden.")
        if isinstance(answer, Mapping):
            return Filters(answer) if answer else None
        raise Error(f"An @auth.on handler returned a {type(answer).__name__}; return a dict.")

    async def _call(self, call: Callable[[Any], Any], handler: Callable[..., Any]) -> Any:
        from langgraph_sdk import Auth

        try:
            returned = call(handler)
            return await returned if inspect.isawaitable(returned) else returned
        except Auth.exceptions.HTTPException as error:
            raise ApiError(error.status_code, str(error.detail), error.headers) from None


def _wanted(handler: Callable[..., Any]) -> frozenset[str]:
    wanted = set()
    for name, parameter in inspect.signature(handler).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            return frozenset(PARAMETERS)
        if name in PARAMETERS:
            wanted.add(name)
        elif parameter.default is parameter.empty:
            known = ", ".join(sorted(PARAMETERS))
            raise BadArgument(
                f"The authenticate handler has the parameter {name!r}; it may have {known}."
            )
    return frozenset(wanted)


def _as_user(returned: Any) -> tuple[Any, dict[str, Any]]:
    """The user object for handlers, and its fields for a run's `configurable`."""
    if isinstance(returned, str):
        returned = {"identity": returned}
    if isinstance(returned, Mapping):
        if returned.get("identity"):
            return (user := User(returned)), dict(user)
    elif getattr(returned, "identity", None):
        return returned, _fields(returned)
    raise ApiError(401, "The authenticate handler returned no identity.")


def _fields(user: Any) -> dict[str, Any]:
    dumped = getattr(user, "model_dump", None) or getattr(user, "to_dict", None)
    own = dumped() if dumped is not None else dict(getattr(user, "__dict__", {}))
    fields = {name: value for name, value in own.items() if not name.startswith("_")}
    names = ("identity", "display_name", "is_authenticated", "permissions")
    return {**{name: getattr(user, name) for name in names if hasattr(user, name)}, **fields}


# -- private parts of `langgraph_sdk.Auth`, which keeps the handlers that were registered with it

ANY = "*"
"""Stands for every resource, or every action, in the key of a handler."""


def authenticate_handler(auth: Any) -> Callable[..., Any] | None:
    """The `@auth.authenticate` handler."""
    handler: Callable[..., Any] | None = auth._authenticate_handler
    return handler


def on_handler(auth: Any, resource: str, action: str) -> Callable[..., Any] | None:
    """The most specific `@auth.on` handler; there is at most one for each resource and action."""
    keys = (resource, action), (resource, ANY), (ANY, action)
    by_key: list[list[Callable[..., Any]]] = [auth._handlers.get(key) or [] for key in keys]
    handlers: list[Callable[..., Any]] = next(
        (one for one in (*by_key, auth._global_handlers) if one), []
    )
    return handlers[-1] if handlers else None
