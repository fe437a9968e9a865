"""Secrets: which names have one, and how they are kept out of what is stored, logged and shown.

`hide` is for values: the arguments of effects lose what is under a secret's name, at any depth.
`redact` is for texts, such as exceptions: it removes the secrets that a call was given, and what
looks like one: `Authorization: Bearer ...`, a password in a URL, `"api_key": "..."`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

HIDDEN = "***"
_NAMES = frozenset(
    {"auth", "authentication", "authorization", "proxy_authorization", "cookie", "set_cookie"}
    | {"credential", "credentials", "passwd", "passphrase", "pwd", "token", "bearer", "jwt", "otp"}
    | {"session_id", "sessionid", "connection_string"}
    | {
        f"{kind}_token"
        for kind in ("access", "api", "auth", "bearer", "bot", "csrf", "id", "oauth", "private")
    }
    | {f"{kind}_token" for kind in ("refresh", "security", "session", "user", "x_auth", "xsrf")}
)
_ENDINGS = (
    *("password", "secret", "secrets", "api_key", "apikey", "access_key", "private_key"),
    *("secret_key", "signing_key", "encryption_key", "auth_token", "access_token"),
    *("security_token", "service_account_json"),
)
_VAGUE = frozenset({"auth", "token", "credential", "credentials", "bearer", "otp"})
"""Names that ordinary sentences have before a colon, too."""


def is_secret(name: Any) -> bool:
    """Whether what has this name is a secret: an argument, the key of a dict, a header."""
    if isinstance(name, bytes):
        name = name.decode(errors="replace")
    if not isinstance(name, str):
        return False
    plain = plain_name(name)
    return plain in _NAMES or plain.endswith(_ENDINGS) or name.lower() in _NAMES


def plain_name(name: str) -> str:
    """A name in the one spelling in which names are compared: `clientSecret` is `client_secret`."""
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"[\s.-]+", "_", plain).strip("_").lower()


def is_secret_value(value: Any) -> bool:
    """Whether a value is one of Pydantic's secrets."""
    return hasattr(value, "get_secret_value")


# -- values


def hide(value: Any) -> Any:
    """A value without its secrets: keys of dicts are left out, other secrets are `***`."""
    return _hide(value, 0)


def _hide(value: Any, depth: int) -> Any:
    if depth > 50:  # nor is a secret looked for in there
        return value
    if is_secret_value(value):
        return HIDDEN
    if type(value) is dict:
        return {k: _hide(item, depth + 1) for k, item in value.items() if not is_secret(k)}
    if type(value) in (list, tuple):
        if _is_pair(value):
            return type(value)([value[0], _blank(value[1])])
        return type(value)([_hide(item, depth + 1) for item in value])
    return _hide_in_text(value) if type(value) is str else value


def _is_pair(value: Any) -> bool:
    """Whether this is a header as many libraries take them: a name and a text."""
    return (
        len(value) == 2
        and isinstance(value[0], (str, bytes))
        and isinstance(value[1], (str, bytes))
        and is_secret(value[0])
    )


def _blank(value: Any) -> Any:
    return HIDDEN.encode() if isinstance(value, bytes) else HIDDEN


def _hide_in_text(text: str) -> str:
    """A text that is a URL or JSON, without the secrets in it. Other texts are kept as they are:
    a link in a mail is what the mail is for."""
    if _ONE_URL.match(text):
        return _hide_query(_USERINFO.sub(rf"\1:{HIDDEN}@", text))
    if text[:1] in ("{", "["):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return text
        hidden = hide(found)
        return text if hidden == found else json.dumps(hidden)
    return text


def fill(
    hidden: Any,
    whole: Any,
    hide: Callable[[Any], Any] = hide,
    is_secret: Callable[[Any], bool] = is_secret,
) -> Any:
    """A value that was hidden, with its secrets from a value of the same shape. A list or text with
    secrets that is another one now is taken as it is now: nothing says whose each secret was."""
    bare = None
    with contextlib.suppress(Exception):  # what cannot be compared is not one of ours
        bare = hide(whole)
        if bare == hidden:
            return whole
    if type(hidden) is dict and type(whole) is dict:
        filled = {
            k: fill(v, whole[k], hide, is_secret) if k in whole and not is_secret(k) else v
            for k, v in hidden.items()
        }
        return filled | {k: v for k, v in whole.items() if is_secret(k)}
    if type(hidden) is type(whole) and type(hidden) in (list, tuple, str):
        with contextlib.suppress(Exception):
            return hidden if bare == whole else whole
    return hidden


def secrets_in(
    value: Any, is_secret: Callable[[Any], bool] = is_secret, name: Any = None
) -> Iterator[str]:
    """Every secret in a value, as texts: with and without what a header says of its kind."""
    if is_secret_value(value):
        yield from _spellings(value.get_secret_value())
    elif is_secret(name) and isinstance(value, (str, bytes, int, float)):
        yield from _spellings(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from secrets_in(item, is_secret, name if is_secret(name) else key)
    elif isinstance(value, (list, tuple, set, frozenset)):
        if isinstance(value, (list, tuple)) and _is_pair(value):
            yield from _spellings(value[1])
        else:
            for item in value:
                yield from secrets_in(item, is_secret, name)
    elif isinstance(value, str):
        if "://" in value:
            for found in _URL_PASSWORD.finditer(value):
                yield from _spellings(found[2])
            for found in _QUERY.finditer(value):
                if is_secret(unquote(found[2])):
                    yield from _spellings(found[3])
        if value[:1] in ("{", "["):
            try:
                yield from secrets_in(json.loads(value), is_secret)
            except (ValueError, RecursionError):
                return


def _spellings(secret: Any) -> Iterator[str]:
    text = secret.decode(errors="replace") if isinstance(secret, bytes) else str(secret)
    _, _, bare = text.partition(" ")
    for one in {text, bare.strip(), unquote(text)}:
        if len(one) > 3:
            yield one
            yield quote(one, safe="")
            yield base64.b64encode(one.encode(errors="replace")).decode()


# -- texts

# Without the limits a long list of URLs would take the square of its length.
_URL_PASSWORD = re.compile(r"(://[^\s:/@'\"]{0,200}):([^\s'\"]{1,1000})@")
_D1_SECRET = re.compile(r"\b(d1://)(\S{1,1000})@", re.IGNORECASE)
"""The same in the URL of a D1 journal, which has no user: it may be there by mistake."""
_USERINFO = re.compile(r"(://[^\s:/?#@]*):([^\s/?#]+)@")
"""The same in a well-formed URL: an `@` may also be in its path or query, behind a port."""
_ONE_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+\Z")
_QUERY = re.compile(r"([?&;])([\w.%-]+)=([^&;#\s'\"]+)")
_NAMED = re.compile(
    r"(?P<quote>\\?['\"])?(?P<name>[A-Za-z][\w.-]{2,60})(?(quote)\\?['\"])(?P<sep>\s*[:=,]\s*)"
    r"(?P<value>b?(?P<q>\\?['\"]).*?(?P=q)"
    r"|(?:Bearer|Basic|Digest|Token|ApiKey)\s+[^\s,;'\"]+|[^\s,;}\])'\"]+)",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"\b(Bearer|Basic)\s+(?=\S*[\d=])[A-Za-z0-9+/._~-]{8,}=*")


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """A text with every secret, and all that looks like one, replaced by `***`."""
    for secret in sorted(set(secrets), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    text = _SCHEME.sub(rf"\1 {HIDDEN}", hide_in_url(text))
    return _NAMED.sub(_redact_named, text)


def _redact_named(found: re.Match[str]) -> str:
    name, separator, value = found["name"], found["sep"], found["value"]
    quoted = found["q"] is not None
    is_vague = name.lower() in _VAGUE or "," in separator
    if (
        not is_secret(name)
        or (is_vague and not quoted)
        or ("," in separator and not found["quote"])
    ):
        return found[0]
    return found[0].removesuffix(value) + (
        f"{found['q']}{HIDDEN}{found['q']}" if quoted else HIDDEN
    )


def hide_in_url(text: str) -> str:
    """A text with the passwords of its URLs, and the secrets in their queries, hidden."""
    text = _D1_SECRET.sub(rf"\1:{HIDDEN}@", text)
    return _hide_query(_URL_PASSWORD.sub(rf"\1:{HIDDEN}@", text))


def _hide_query(text: str) -> str:
    return _QUERY.sub(
        lambda one: f"{one[1]}{one[2]}={HIDDEN}" if is_secret(unquote(one[2])) else one[0], text
    )
