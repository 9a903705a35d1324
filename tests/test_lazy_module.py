"""Modules that are imported when they are first used."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from tollgate.lazy_module import LazyModule


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LazyModule:
    """A package that counts its imports, with a submodule."""
    folder = tmp_path / "lazily_imported"
    folder.mkdir()
    (folder / "__init__.py").write_text("nothing = None\nclass Failure(Exception): pass\n")
    (folder / "inner.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    return LazyModule("lazily_imported")


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    real = importlib.import_module

    def note(name: str) -> Any:
        names.append(name)
        return real(name)

    monkeypatch.setattr(importlib, "import_module", note)
    return names


def test_import_runs_at_the_first_use_of_a_name_and_once(package: LazyModule, imported: list[str]) -> None:
    assert imported == []
    assert issubclass(package.Failure, Exception)
    assert package.Failure is package.Failure
    assert imported == ["lazily_imported"]


def test_submodule_is_imported_at_the_first_use_of_its_own_names(package: LazyModule) -> None:
    assert package.inner.answer == 42


def test_name_that_is_none_is_none(package: LazyModule) -> None:
    assert package.nothing is None


def test_unknown_name_fails(package: LazyModule) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"lazily_imported\.unknown"):
        _ = package.unknown


def test_unknown_module_fails_at_its_first_use() -> None:
    missing = LazyModule("no_such_package")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        _ = missing.anything
