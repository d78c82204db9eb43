"""Releases: the changelog, the version, and what stands in the way of one."""

import subprocess
from pathlib import Path

import pytest

from tools import release

CHANGELOG = "# Changelog\n\n## 0.2.0 (unreleased)\n\n- More.\n\n## 0.1.0 (2026-01-01)\n\n- First.\n"
PROJECT = '[project]\nname = "x"\nversion = "0.1.0"\n'


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(release, "ROOT", tmp_path)
    for key in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{key}_NAME", "me")
        monkeypatch.setenv(f"GIT_{key}_EMAIL", "me@example.org")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=tmp_path, check=True)
    release.git("add", "--all")
    release.git("commit", "--message", "Begin")
    release.git("tag", "v0.1.0")
    return tmp_path


def test_a_release_is_dated_committed_and_tagged(repository: Path) -> None:
    assert release.main(["0.2.0"]) == 0
    assert 'version = "0.2.0"\n' in (repository / "pyproject.toml").read_text()
    assert "\n## 0.2.0 (2" in (repository / "CHANGELOG.md").read_text()
    assert release.main(["0.2.0", "--finish"]) == 0
    assert release.git("status", "--porcelain") == ""
    assert release.git("describe") == "v0.2.0\n"


@pytest.mark.parametrize(
    ("version", "changelog", "why"),
    [
        ("0.1.0", CHANGELOG, "not above 0.1.0"),
        ("0.0.9", CHANGELOG, "not above 0.1.0"),
        ("0.3.0", CHANGELOG, "does not begin with the section '## 0.3.0 (unreleased)'"),
        ("0.2.0", CHANGELOG.replace("- More.", ""), "no entries"),
        ("0.2.0", CHANGELOG.replace("(unreleased)", "(2026-02-02)"), "does not begin"),
        ("next", CHANGELOG, "not a version"),
    ],
)
def test_what_stands_in_the_way_is_reported_and_nothing_is_written(
    version: str, changelog: str, why: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "CHANGELOG.md").write_text(changelog)
    release.git("commit", "--all", "--allow-empty", "--message", "Change")
    assert release.main([version]) == 1
    assert why in capsys.readouterr().err
    assert release.git("status", "--porcelain") == ""


def test_only_a_clean_main_is_released(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "note").write_text("unsaved")
    assert release.main(["0.2.0"]) == 1
    (repository / "note").unlink()
    release.git("switch", "--create", "other")
    assert release.main(["0.2.0"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "the working tree has changes; commit them first",
        "on branch other; releases are made on main",
    ]


def test_our_own_changelog_can_be_released() -> None:
    root = Path(__file__).parents[1]
    first = (root / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n## ")[2].partition("\n")[0]
    version, _, state = first.partition(" ")
    if state == "(unreleased)":
        release.dated((root / "CHANGELOG.md").read_text(encoding="utf-8"), version, "2026-01-01")
    assert release.NUMBERS.fullmatch(version)
