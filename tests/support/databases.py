"""The databases that a test which takes `url` runs on."""

import pytest

DATABASES = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("d1", marks=pytest.mark.d1),
]
