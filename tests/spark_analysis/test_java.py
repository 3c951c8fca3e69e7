from pathlib import Path

import pytest

from spark_analysis.java import NEEDED, find_java
from spark_analysis.terminal import JobFailed


def java(home: Path, version: str) -> Path:
    """A program that says of itself what Java does; returns its folder."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    return home


def test_the_one_that_java_home_names_comes_first(tmp_path: Path) -> None:
    home = java(tmp_path / "mine", "21.0.2")
    other = java(tmp_path / "other", "17.0.15")
    environment = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    found = find_java(environment, tmp_path / "jvm")
    assert (found.home, found.version) == (home, 21)


@pytest.mark.parametrize("old", ["1.8.0_412", "11.0.23"])
def test_an_old_one_is_passed_over(tmp_path: Path, old: str) -> None:
    old_home = java(tmp_path / "old", old)
    new_home = java(tmp_path / "jvm" / "java-17-openjdk", "17.0.15")
    environment = {"JAVA_HOME": str(old_home), "PATH": str(old_home / "bin")}
    assert find_java(environment, tmp_path / "jvm").home == new_home


def test_without_any_the_message_says_what_is_needed_and_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(JobFailed) as missing:
        find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""}, tmp_path)
    assert f"needs Java {NEEDED} or newer; found here: no Java at all." in str(missing.value)
    assert f"apt-get install openjdk-{NEEDED}-jre-headless" in str(missing.value)


def test_with_old_ones_only_the_message_names_them(tmp_path: Path) -> None:
    home = java(tmp_path / "old", "11.0.23")
    with pytest.raises(JobFailed, match=rf"found here: Java 11 \({home}\)\."):
        find_java({"JAVA_HOME": str(home), "PATH": ""}, tmp_path)


def test_what_is_called_java_and_is_none_is_no_java(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    with pytest.raises(JobFailed, match="no Java at all"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}, tmp_path)
