r"""Secrets: which names have one, and how they are kept out of what is stored, logged and shown.

`hide` is for values: effect arguments lose what is under a secret's name, at any depth. `redact` is
for texts, such as exceptions: it removes the secrets that a call was given, and what looks like
one: `Authorization: Bearer ...`, a password in a URL, `"api_key": "..."`.

`Redaction` is a policy: keys whose values are secrets, and patterns that find secrets in texts. It
is applied where values become bytes (`Serializer.encode`), so everything stored has passed it.
`Redactor` walks over the encoded value: the names of fields, of dict keys and of types are all
there, and no object of the user's is touched. Anybody may have written a text, so a search that
takes longer than `PATIENCE` is given up, and the whole text is replaced.
"""

from __future__ import annotations

import base64
import contextlib
import fnmatch
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import is_
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote, unquote

import ormsgpack

from perdure.errors import BadArgument

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


def hide(value: Any, depth: int = 0) -> Any:
    """A value without its secrets: keys of dicts are left out, other secrets are `***`."""
    if depth > 50:  # nor is a secret looked for in there
        return value
    if is_secret_value(value):
        return HIDDEN
    if type(value) is dict:
        return {k: hide(item, depth + 1) for k, item in value.items() if not is_secret(k)}
    if type(value) in (list, tuple):
        if _is_pair(value):
            blank = HIDDEN.encode() if isinstance(value[1], bytes) else HIDDEN
            return type(value)([value[0], blank])
        return type(value)([hide(item, depth + 1) for item in value])
    return _hide_in_text(value) if type(value) is str else value


def _is_pair(value: Any) -> bool:
    """Whether this is a header as many libraries take them: a name and a text."""
    return (
        len(value) == 2
        and isinstance(value[0], (str, bytes))
        and isinstance(value[1], (str, bytes))
        and is_secret(value[0])
    )


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


# -- a policy

PATIENCE = 1.0
"""Seconds of processor time that one search of one text may take."""


@dataclass(frozen=True)
class Redaction:
    """What a journal must never hold, by name and by pattern.

    Secrets are replaced before anything is stored, so nodes see the replacement too. Pass the same
    policy to every `Runtime`, `Client` and `Saver` of a journal.

        Runtime(redact=Redaction(keys=["iban", "*_pin"], patterns=[Redaction.EMAIL]))

    Raises:
        BadArgument: A key is only wildcards, a pattern is invalid or finds the empty text, or
            `replace` is empty.
    """

    keys: Iterable[str] = ()
    """Names whose whole value is replaced, unless it is None: dict keys, fields, arguments and
    channels, or globs of them with `*` and `?`. `api_key` also matches `apiKey` and `API-Key`."""
    patterns: Iterable[str | re.Pattern[str]] = ()
    """Regular expressions, or `Redaction.EMAIL`, `CARD` and `TOKEN`. Their matches in text are
    replaced. A text in which a search takes more than a second is replaced as a whole."""
    replace: str = HIDDEN
    """The replacement."""

    EMAIL: ClassVar[str] = (
        r"(?<![\w.+-])[\w.+-]{1,64}+@[A-Za-z0-9-]{1,63}+(?:\.[A-Za-z0-9-]{1,63}+){1,8}"
    )
    """Finds e-mail addresses."""
    CARD: ClassVar[str] = (
        r"(?<![0-9])(?=[3-6]|2[2-7])(?:(?:[0-9]{4}[ -]?){3}[0-9]{1,7}"
        r"|[0-9]{4}[ -]?[0-9]{6}[ -]?[0-9]{4,5}|[0-9]{13,19})(?![0-9])"
    )
    """Finds what looks like a card number: 13 to 19 digits, alone or in groups."""
    TOKEN: ClassVar[str] = "|".join(
        (
            r"\b(?:Bearer|Basic)\s{1,4}+[A-Za-z0-9+/._~-]{8,4096}+={0,2}+",
            r"\b(?:sk|pk|rk|ghp|gho|ghs|ghu|github_pat|glpat|xox[abeprs]|lsv2)[-_][\w-]{10,255}+",
            r"\bAKIA[A-Z0-9]{16}\b|\bAIza[A-Za-z0-9_-]{35}",
            r"\beyJ[A-Za-z0-9_-]{8,2048}+\.[A-Za-z0-9_-]{8,8192}+(?:\.[A-Za-z0-9_-]{8,2048}+)?",
        )
    )
    """Finds bearer tokens, API keys of known forms, and JWTs."""

    def __post_init__(self) -> None:
        for name in ("keys", "patterns"):
            value = getattr(self, name)
            if isinstance(value, (str, re.Pattern)):
                raise BadArgument(f"Redaction({name}=…) takes a list, not {value!r} alone.")
            object.__setattr__(self, name, tuple(value))
        if not self.replace:
            raise BadArgument("Redaction(replace=''): give a text.")
        for key in self.keys:
            if not key.strip("*?"):
                raise BadArgument(f"Redaction(keys=…): {key!r} is neither a name nor a glob.")
        for pattern in self.patterns:
            compiled = _compile(pattern)
            if compiled.search("") or compiled.search(self.replace):
                raise BadArgument(
                    f"Redaction: the pattern {compiled.pattern!r} finds the empty text, or "
                    f"{self.replace!r}, which takes the place of what it finds. Make it narrower."
                )


def _compile(pattern: Any) -> Any:
    """A pattern for the package `regex`, which can give up a search."""
    import regex

    flags = 0
    if isinstance(pattern, re.Pattern):
        flags = pattern.flags & (re.I | re.M | re.S | re.X) | (
            regex.A if pattern.flags & re.A else 0
        )
        pattern = pattern.pattern
    if not isinstance(pattern, str):
        raise BadArgument(f"Redaction(patterns=…): {pattern!r} is no regular expression for texts.")
    try:
        return regex.compile(pattern, flags)
    except regex.error as error:
        raise BadArgument(
            f"Redaction(patterns=…): {pattern!r} is not a regular expression: {error}"
        ) from None


# -- a policy, applied

_CONTAINERS = frozenset("tsfqOCe")
"""Letters of `builtin_types` whose payload has other values."""
_TEXTS = frozenset("pwP")
"""Those whose payload is a text, and may be another."""
_ADDRESSES = frozenset("45N67M")
"""Those whose payload is a text of a certain form: replaced as a whole."""
_LINKS = frozenset(["id", "tool_call_id", "type", "node", "goto", "graph"])
"""Fields of LangChain's and LangGraph's own types that say what belongs to what."""


class _Ext(NamedTuple):
    """An extension type as it is encoded."""

    code: int
    body: bytes


def _repack(value: Any) -> Any:
    if type(value) is _Ext:
        return ormsgpack.Ext(*value)
    raise TypeError


_unpack: Callable[[bytes], Any] = functools.partial(ormsgpack.unpackb, ext_hook=_Ext)
_pack: Callable[[Any], bytes] = functools.partial(
    ormsgpack.packb, default=_repack, option=ormsgpack.OPT_PASSTHROUGH_TUPLE
)


class Redactor:
    """Applies a policy to encoded values and to texts."""

    def __init__(self, policy: Redaction, is_enum: Callable[[str, str], bool]) -> None:
        """`is_enum`: whether (module, name) is an enum. Its members are code, and must be found
        again."""
        self.policy, self._is_enum, self._replacement = policy, is_enum, policy.replace
        keys = [plain_name(key) for key in policy.keys]
        self._keys = [re.compile(fnmatch.translate(key.replace("[", "[[]"))).match for key in keys]
        self._named = _compile(_named(keys)) if keys else None
        self._patterns = [_compile(one) for one in policy.patterns]
        self.hides = functools.lru_cache(maxsize=10_000)(self._hides)

    def _hides(self, name: Any) -> bool:
        """Whether the policy names this key."""
        if type(name) is bytes:
            name = name.decode(errors="replace")
        if type(name) is not str or name.startswith("__"):
            return False
        plain = plain_name(name)
        return any(match(plain) for match in self._keys)

    def of_channel(self, channel: str, value: Any) -> Any:
        """A channel's value, or what takes its place if the name of the channel is a secret's."""
        return self._replacement if value is not None and self.hides(channel) else value

    def clean(self, data: bytes, *, pair: bool = False) -> bytes:
        """An encoded value without its secrets; the same object if it has none. `pair`: it is a
        [key, value] of a dict. Raises `RecursionError` for one that is nested very deeply."""
        tree = _unpack(data)
        found = self._entry(tree) if pair else self._walk(tree)
        return data if found is tree else _pack(found)

    def text(self, text: str) -> str:
        """A text without what a pattern finds, and what is under a key: as JSON, or `key=value`."""
        if text[:1] in ("{", "[") and (self._named is not None or "\\" in text):
            with contextlib.suppress(ValueError, RecursionError):
                found = json.loads(text)
                clean = self._walk(found)
                text = text if clean is found else json.dumps(clean, ensure_ascii=False)
        try:
            if self._named is not None:
                text = self._named.sub(self._without_value, text, timeout=PATIENCE)
            for pattern in self._patterns:
                text = pattern.sub(lambda _: self._replacement, text, timeout=PATIENCE)
        except TimeoutError:
            return self._replacement
        return text

    def _without_value(self, found: Any) -> str:
        value = found["value"]
        quote = next((one for one in ('\\"', "\\'", '"', "'") if value.startswith(one)), "")
        return f"{found['before']}{quote}{self._replacement}{quote}"

    def _walk(self, value: Any) -> Any:
        """A value without its secrets; the same object if it has none."""
        kind = type(value)
        if kind is str:
            clean = self.text(value)
            return value if clean == value else clean
        if kind is dict:
            return self._fields(value, of_user=True)
        if kind is list:
            if len(value) == 2 and self._is_header(*value):
                return self._entry(value)
            found = [self._walk(one) for one in value]
            return value if all(map(is_, found, value)) else found
        if kind is _Ext:
            return self._extension(value)
        if kind is bytes:
            return self._bytes(value)
        return value

    def _is_header(self, name: Any, value: Any) -> bool:
        """Whether this is a header as many libraries take them: a name and a text."""
        if type(name) not in (str, bytes) or type(value) not in (str, bytes):
            return False
        text = name.decode(errors="replace") if type(name) is bytes else name
        return self.hides(text) and re.fullmatch(r"[\w.-]{1,80}", text) is not None

    def _bytes(self, value: bytes) -> bytes:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return value
        clean = self.text(text)
        return value if clean == text else clean.encode()

    def _fields(
        self, value: dict[str, Any], *, of_user: bool, links: frozenset[str] = frozenset()
    ) -> dict[str, Any]:
        """A dict without secrets. Its keys are searched too, unless they are names of fields."""
        changed, redacted = False, {}
        for key, item in value.items():
            if key in links:
                redacted[key] = item
                continue
            found = self._value(key, item)
            name = self.text(key) if of_user else key
            changed = changed or found is not item or name != key
            redacted[name] = found
        return redacted if changed else value

    def _value(self, key: Any, item: Any) -> Any:
        if item is not None and self.hides(key):
            return item if item == self._replacement else self._replacement
        return self._walk(item)

    def _entry(self, pair: list[Any]) -> list[Any]:
        key, item = pair
        found = [self._walk(key), self._value(key, item)]
        return pair if all(map(is_, found, pair)) else found

    def _extension(self, value: _Ext) -> Any:
        inner = _unpack(value.body)
        if value.code == 4:  # PAIRS
            found: Any = [self._entry(pair) for pair in inner]
            return value if all(map(is_, found, inner)) else _Ext(4, _pack(found))
        if value.code == 1:  # BUILTIN
            letter, payload = inner
            if letter in _CONTAINERS or letter in _TEXTS:
                found = self._walk(payload)
                return value if found is payload else _Ext(1, _pack([letter, found]))
            if letter in _ADDRESSES and self.text(payload) != payload:
                return self._replacement
            return value
        *head, state = inner
        if type(state) is not list or (len(head) == 2 and self._is_enum(*head)):
            return value
        links = _LINKS if value.code == 3 else frozenset[str]()
        found = [
            self._fields(part, of_user=False, links=links)
            if type(part) is dict
            else self._walk(part)
            for part in state
        ]
        if all(map(is_, found, state)):
            return value
        return _Ext(value.code, _pack([*head, found]))


_LANGGRAPHS = frozenset(["checkpoint_ns", "source", "parents", "step"])
"""What LangGraph itself has in config and metadata, and needs."""


def is_id(name: str) -> bool:
    """Whether this key of a config or of metadata has an id: it says which rows, memories or
    threads are meant, or LangGraph's own, and is never redacted."""
    return name == "id" or name.endswith("_id") or name in _LANGGRAPHS


def _named(plain: Iterable[str]) -> str:
    """Finds `key=value`, `"key": "value"` and the like in a text. What follows the separator always
    matches, so no part of a text is looked at twice."""
    words = [_in_text(key) for key in plain]
    return (
        rf"(?is)(?P<before>(?<![A-Za-z0-9])(?:{'|'.join(words)})\\?['\"]?\s{{0,4}}[:=]\s{{0,4}}b?)"
        r"(?P<value>\"(?:[^\"\\]|\\.)*+\"?|'(?:[^'\\]|\\.)*+'?"
        r"|\\\"(?:(?!\\\").)*+(?:\\\")?|\\'(?:(?!\\').)*+(?:\\')?"
        r"|[^\s,;&}\])'\"\\{\[]++)"
    )


def _in_text(key: str) -> str:
    """A name, or a glob, as it may be spelled in a text."""
    spelled = {"*": r"[\w.-]{0,60}", "?": r"[\w.-]", "_": "[_. -]?"}
    return "".join(spelled.get(one) or re.escape(one) for one in key)
