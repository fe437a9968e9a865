r"""What a journal must never hold, by policy: `Redaction`, and how it is applied.

A policy names keys, whose values are secrets, and patterns, which find secrets in texts. It is
applied where values become bytes (`Codec.encode`), so everything stored has passed it. `Redactor`
walks over the encoded value: the names of fields, of dict keys and of types
are all there, and no object of the user's is touched.

A search takes time linear in the text: `check_bounded` refuses every pattern for which that is not
certain, since a model's answer or a mail decides what is searched.
"""

from __future__ import annotations

import fnmatch
import functools
import importlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any, ClassVar, NamedTuple

import ormsgpack

from perdure.errors import BadArgument
from perdure.serde.redaction import HIDDEN, plain_name

MOST_STEPS = 100_000
"""Maximum steps of a pattern from one position in a text."""


@dataclass(frozen=True)
class SecretPattern:
    """A regular expression that finds secrets."""

    regex: str
    """The regular expression."""
    spans: Callable[[str], Iterator[tuple[int, int]]] | None = None
    """Finds the secrets inside a match, as pairs of start and end. None: the whole match."""


def _card_numbers(found: str) -> Iterator[tuple[int, int]]:
    """Where card numbers are in groups of digits. Another number, as the date that it expires, may
    be beside one: its groups have at least three digits, unless there is nothing else."""
    groups = [one.span() for one in re.finditer(r"[0-9]+", found)]
    first = 0
    while first < len(groups):
        ends = [
            n
            for n in range(first, min(first + 19, len(groups)))
            if _is_card_number(found[groups[first][0] : groups[n][1]])
            and (
                (first, n) == (0, len(groups) - 1)
                or all(end - begin > 2 for begin, end in groups[first : n + 1])
            )
        ]
        if ends:
            yield groups[first][0], groups[ends[-1]][1]
        first = ends[-1] + 1 if ends else first + 1


def _is_card_number(found: str) -> bool:
    """Whether these are 13 to 19 digits that end with the check digit of a card number."""
    digits = [int(one) for one in found if one.isdigit()][::-1]
    doubled = (sum(divmod(2 * one, 10)) for one in digits[1::2])
    return 13 <= len(digits) <= 19 and (sum(digits[::2]) + sum(doubled)) % 10 == 0


@dataclass(frozen=True)
class Redaction:
    """What a journal must never hold, by name and by pattern.

    Secrets are replaced before anything is stored, so nodes see the replacement too. Pass the same
    policy to every `Runtime`, `Client` and `Saver` of a journal.

        Runtime(redact=Redaction(keys=["iban", "*_pin"], patterns=[Redaction.EMAIL]))

    Raises:
        BadArgument: A key is only wildcards, a pattern is invalid or may take very long, or
            `replace` is empty.
    """

    keys: Iterable[str] = ()
    """Names whose whole value is replaced, unless it is None: dict keys, fields, arguments and
    channels, or globs of them with `*` and `?`. `api_key` also matches `apiKey` and `API-Key`."""
    patterns: Iterable[str | re.Pattern[str] | SecretPattern] = ()
    """Regular expressions, or `Redaction.EMAIL`, `CARD` and `TOKEN`. Their matches in text are
    replaced. Each repeat needs an upper bound: `\\w{1,64}`, not `\\w+`."""
    replace: str = HIDDEN
    """The replacement."""

    EMAIL: ClassVar[SecretPattern]
    """Finds e-mail addresses."""
    CARD: ClassVar[SecretPattern]
    """Finds card numbers: 13 to 19 digits with a valid check digit, alone or in groups."""
    TOKEN: ClassVar[SecretPattern]
    """Finds bearer tokens, API keys of known forms, and JWTs."""

    def __post_init__(self) -> None:
        for name in ("keys", "patterns"):
            given = getattr(self, name)
            if isinstance(given, (str, re.Pattern, SecretPattern)):
                raise BadArgument(f"Redaction({name}=…) takes a list, not {given!r} alone.")
            object.__setattr__(self, name, tuple(given))
        if not self.replace:
            raise BadArgument("Redaction(replace=''): give a text.")
        for key in self.keys:
            if not key.strip("*?"):
                raise BadArgument(f"Redaction(keys=…): {key!r} is neither a name nor a glob.")
        for pattern in self.patterns:
            compiled = _compile(pattern)
            check_bounded(compiled)
            if compiled.search("") or compiled.search(self.replace):
                raise BadArgument(
                    f"Redaction: the pattern {compiled.pattern!r} finds the empty text, or "
                    f"{self.replace!r}, which takes the place of what it finds. Make it narrower."
                )


Redaction.EMAIL = SecretPattern(
    r"(?<![\w.+-])[\w.+-]{1,64}+@[A-Za-z0-9-]{1,63}+(?:\.[A-Za-z0-9-]{1,63}+){1,8}"
)
Redaction.CARD = SecretPattern(r"[0-9](?<![0-9]{2})(?:[ -]?+[0-9]){12,65535}+", _card_numbers)
Redaction.TOKEN = SecretPattern(
    r"\b(?:Bearer|Basic)\s{1,4}+[A-Za-z0-9+/._~-]{8,4096}+={0,2}+"
    r"|\b(?:sk|pk|rk|ghp|gho|ghs|ghu|github_pat|glpat|xox[abeprs]|lsv2)[-_][A-Za-z0-9_-]{10,255}+"
    r"|\bAKIA[A-Z0-9]{16}\b|\bAIza[A-Za-z0-9_-]{35}"
    r"|\beyJ[A-Za-z0-9_-]{8,2048}+\.[A-Za-z0-9_-]{8,8192}+(?:\.[A-Za-z0-9_-]{8,2048}+)?"
)


def _compile(pattern: Any) -> re.Pattern[str]:
    try:
        found = re.compile(pattern.regex if isinstance(pattern, SecretPattern) else pattern)
    except (re.error, TypeError) as error:
        raise BadArgument(
            f"Redaction(patterns=…): {pattern!r} is not a regular expression: {error}"
        ) from None
    if not isinstance(found.pattern, str):
        raise BadArgument(f"Redaction(patterns=…): {pattern!r} is for bytes. Give one for texts.")
    return found


# -- patterns that take linear time


def check_bounded(pattern: re.Pattern[str]) -> None:
    """Refuse a pattern that could take more than `MOST_STEPS` from one position of a text."""
    try:
        if _steps(_parse(pattern), inside=False) > MOST_STEPS:
            raise _Unbounded("it has too many repeats one after the other")
    except _Unbounded as error:
        raise BadArgument(
            f"Redaction: the pattern {pattern.pattern!r} may take very long: {error}. Write "
            r"\w{1,64} instead of \w+, and make a repeat inside of a repeat possessive: "
            r"(?:\.\w{1,64}+){1,8}."
        ) from None


def _parse(pattern: re.Pattern[str]) -> Any:
    parser = importlib.import_module("re._parser")  # no other knows
    return parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)


class _Unbounded(Exception):
    pass


def _steps(tree: Any, inside: bool) -> int:
    """The most ways to match a part of a pattern. `inside`: it is repeated itself."""
    steps = 1
    for op, argument in tree:
        name = str(op)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            low, high, part = argument
            if high > 65_536:
                raise _Unbounded("a repeat has no upper bound")
            varies = high != low and name != "POSSESSIVE_REPEAT"
            if varies and inside:
                raise _Unbounded("a repeat inside of a repeat can match in many ways")
            within = _steps(part, inside or high > 1)
            if within > 1 and name != "POSSESSIVE_REPEAT":
                if within ** min(high, 64) > MOST_STEPS:
                    raise _Unbounded("a choice inside of a repeat can match in many ways")
                within **= high
            steps *= within * (high - low + 1 if varies else 1)
        elif name == "SUBPATTERN":
            steps *= _steps(argument[-1], inside)
        elif name == "ATOMIC_GROUP":
            steps *= _steps(argument, inside)
        elif name == "BRANCH":
            ways = [_steps(part, inside) for part in argument[1]]
            steps *= max(ways) if _exclude_each_other(argument[1]) else sum(ways)
        elif name in ("ASSERT", "ASSERT_NOT"):
            steps *= _steps(argument[1], inside)
        elif name == "GROUPREF_EXISTS":
            steps *= sum(_steps(part, inside) for part in argument[1:] if part)
    return steps


def _exclude_each_other(parts: Any) -> bool:
    """Whether each part of a choice begins with a letter of its own: at most one can match."""
    first: list[Any] = [part[0] if len(part) else ("", 0) for part in parts]
    if any(str(op) != "LITERAL" for op, _ in first):
        return False
    letters = [chr(letter).casefold() for _, letter in first]
    return len({*letters}) == len(letters)


def literal_of(tree: Any, flags: int) -> str:
    """A text that is in every match of a pattern; it may be empty."""
    if flags & re.IGNORECASE:
        return ""
    found, run = "", ""
    for op, argument in tree:
        name = str(op)
        if name == "LITERAL" and re.match(r"[A-Za-z0-9_@.-]", chr(argument)):
            run += chr(argument)  # others may be escaped, in a text that is JSON
        else:
            inner = ""
            if name == "SUBPATTERN" and not argument[1]:  # without flags of its own
                inner = literal_of(argument[-1], flags)
            found, run = max(found, run, inner, key=len), ""
    return max(found, run, key=len)


class _Search(NamedTuple):
    """A pattern of a policy, as it is applied."""

    regex: re.Pattern[str]
    literal: str
    """The text that every match contains. A text or a blob without it has no match."""
    substitute: Callable[[re.Match[str]], str]

    @classmethod
    def of(cls, pattern: Any, replacement: str) -> _Search:
        regex, spans = _compile(pattern), getattr(pattern, "spans", None)

        def substitute(found: re.Match[str]) -> str:
            text = found[0]
            for start, end in [(0, len(text))] if spans is None else [*spans(text)][::-1]:
                text = text[:start] + replacement + text[end:]
            return text

        return cls(regex, literal_of(_parse(regex), regex.flags), substitute)

    def may_be_in(self, data: bytes) -> bool:
        return self.literal.encode() in data


# -- applied

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
        self.policy = policy
        plain = [plain_name(key) for key in policy.keys]
        self._rules = _Rules(
            policy.replace,
            is_enum,
            [_Search.of(one, policy.replace) for one in policy.patterns],
            [re.compile(fnmatch.translate(key.replace("[", "[[]"))).match for key in plain],
            _named(plain) if plain else None,
        )
        self._words = [max(re.split(r"[^a-z0-9]+", key), key=len).encode() for key in plain]
        """A word of each key: a blob that has none of them has no key."""
        self._narrower: dict[tuple[bool, ...], _Rules] = {}
        self.hides, self.text = self._rules.hides, self._rules.text

    def clean(self, data: bytes, *, pair: bool = False) -> bytes:
        """An encoded value without its secrets; the same object if it has none. `pair`: it is a
        [key, value] of a dict. Raises `RecursionError` for one that is nested very deeply."""
        rules = self._narrowed(data)
        if rules is None:
            return data
        tree = _unpack(data)
        found = rules.entry(tree) if pair else rules.walk(tree)
        return data if found is tree else _pack(found)

    def _narrowed(self, data: bytes) -> _Rules | None:
        """The rules that may find something in a blob. It lacks the words of the others, or the
        text that each match has. None: there are none."""
        lowered, searches = data.lower() if self._words else b"", self._rules.searches
        is_escaped = b"\\u" in data  # JSON, in which any letter may be written so
        by_key = any(is_escaped or word in lowered for word in self._words)
        left = (by_key, *(is_escaped or one.may_be_in(data) for one in searches))
        if not any(left):
            return None
        if left not in self._narrower:
            rules = replace(self._rules, searches=[*compress(searches, left[1:])])
            self._narrower[left] = rules if by_key else replace(rules, keys=[], named=None)
        return self._narrower[left]


@dataclass(frozen=True)
class _Rules:
    """What is looked for in a value."""

    replacement: str
    is_enum: Callable[[str, str], bool]
    searches: Sequence[_Search]
    keys: Sequence[Callable[[str], Any]]
    named: re.Pattern[str] | None
    _known: dict[str, bool] = field(default_factory=dict)

    def hides(self, name: Any) -> bool:
        """Whether the policy names this key."""
        if type(name) is bytes:
            name = name.decode(errors="replace")
        if type(name) is not str or not self.keys:
            return False
        known = self._known.get(name)
        if known is None:
            plain = plain_name(name)
            known = not name.startswith("__") and any(match(plain) for match in self.keys)
            if len(self._known) > 10_000:
                self._known.clear()
            self._known[name] = known
        return known

    def text(self, text: str) -> str:
        """A text without what a pattern finds, and what is under a key: as JSON, or `key=value`."""
        if text[:1] in ("{", "[") and (self.named is not None or "\\" in text):
            try:
                found = json.loads(text)
            except (ValueError, RecursionError):
                pass
            else:
                clean = self.walk(found)
                text = text if clean is found else json.dumps(clean, ensure_ascii=False)
        if self.named is not None:
            text = self.named.sub(self._without_value, text)
        for one in self.searches:
            if one.literal in text and one.regex.search(text) is not None:
                text = one.regex.sub(one.substitute, text)
        return text

    def _without_value(self, found: re.Match[str]) -> str:
        value = found["value"]
        quote = next((one for one in ('\\"', "\\'", '"', "'") if value.startswith(one)), "")
        return f"{found['before']}{quote}{self.replacement}{quote}"

    def walk(self, value: Any) -> Any:
        """A value without its secrets; the same object if it has none."""
        kind = type(value)
        if kind is str:
            clean = self.text(value)
            return value if clean == value else clean
        if kind is dict:
            return self._fields(value, of_user=True)
        if kind is list:
            if len(value) == 2 and self._is_header(*value):
                return self.entry(value)
            found = [self.walk(one) for one in value]
            return value if all(map(_is, found, value)) else found
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
        changed, made = False, {}
        for key, item in value.items():
            if key in links:
                made[key] = item
                continue
            found = self._value(key, item)
            name = self.text(key) if of_user else key
            changed = changed or found is not item or name != key
            made[name] = found
        return made if changed else value

    def _value(self, key: Any, item: Any) -> Any:
        if item is not None and self.hides(key):
            return item if item == self.replacement else self.replacement
        return self.walk(item)

    def entry(self, pair: list[Any]) -> list[Any]:
        key, item = pair
        found = [self.walk(key), self._value(key, item)]
        return pair if all(map(_is, found, pair)) else found

    def _extension(self, value: _Ext) -> Any:
        inner = _unpack(value.body)
        if value.code == 4:  # PAIRS
            found: Any = [self.entry(pair) for pair in inner]
            return value if all(map(_is, found, inner)) else _Ext(4, _pack(found))
        if value.code == 1:  # BUILTIN
            letter, payload = inner
            if letter in _CONTAINERS or letter in _TEXTS:
                found = self.walk(payload)
                return value if found is payload else _Ext(1, _pack([letter, found]))
            if letter in _ADDRESSES and self.text(payload) != payload:
                return self.replacement
            return value
        *head, state = inner
        if type(state) is not list or (len(head) == 2 and self.is_enum(*head)):
            return value
        links = _LINKS if value.code == 3 else frozenset[str]()
        found = [
            self._fields(part, of_user=False, links=links)
            if type(part) is dict
            else self.walk(part)
            for part in state
        ]
        if all(map(_is, found, state)):
            return value
        return _Ext(value.code, _pack([*head, found]))


def _is(one: Any, other: Any) -> bool:
    return one is other


_LANGGRAPHS = frozenset(["checkpoint_ns", "source", "parents", "step"])
"""What LangGraph itself has in config and metadata, and needs."""


def is_id(name: str) -> bool:
    """Whether this key of a config or of metadata has an id: it says which rows, memories or
    threads are meant, or LangGraph's own, and is never redacted."""
    return name == "id" or name.endswith("_id") or name in _LANGGRAPHS


def _named(plain: Iterable[str]) -> re.Pattern[str]:
    """Finds `key=value`, `"key": "value"` and the like in a text. What follows the separator always
    matches, so no part of a text is looked at twice."""
    words = [_in_text(key) for key in plain]
    return re.compile(
        rf"(?P<before>(?<![A-Za-z0-9])(?:{'|'.join(words)})\\?['\"]?\s{{0,4}}[:=]\s{{0,4}}b?)"
        r"(?P<value>\"(?:[^\"\\]|\\.)*+\"?|'(?:[^'\\]|\\.)*+'?"
        r"|\\\"(?:(?!\\\").)*+(?:\\\")?|\\'(?:(?!\\').)*+(?:\\')?"
        r"|[^\s,;&}\])'\"\\{\[]++)",
        re.IGNORECASE | re.DOTALL,
    )


def _in_text(key: str) -> str:
    """A name, or a glob, as it may be spelled in a text."""
    spelled = {"*": r"[\w.-]{0,60}", "?": r"[\w.-]", "_": "[_. -]?"}
    return "".join(spelled.get(one) or re.escape(one) for one in key)
