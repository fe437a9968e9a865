"""Removes secrets from stored text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def redact(text: str, secrets: Mapping[str, Any]) -> str:
    """Replace every secret in a text by `***`."""
    for secret in secrets.values():
        hidden = secret.get_secret_value() if hasattr(secret, "get_secret_value") else secret
        if isinstance(hidden, str) and len(hidden) > 3:
            text = text.replace(hidden, "***")
    return text
