"""The statement lists are well formed, and the reader of the markers sees what pytest sees."""

import sys
from pathlib import Path

import pytest

from tests.spec import coverage
from tests.spec.coverage import STANDARDS, Marker, Standard, Statement, measure, read_markers

TESTS = Path(__file__).resolve().parent.parent

each_standard = pytest.mark.parametrize("standard", STANDARDS, ids=lambda standard: standard.name)


def number(statement: Statement) -> tuple[list[int], int]:
    section, _, last = statement.id.removeprefix("MQTT-").partition("-")
    return [int(part) for part in section.split(".")], int(last)


def read(folder: Path, source: str) -> list[Marker]:
    """The markers in a file of tests with this source."""
    (folder / "test_sample.py").write_text(source)
    return read_markers(folder)


def cited(folder: Path, source: str) -> dict[str, bool]:
    """What the markers in this source name, and whether it counts."""
    return {marker.cited: marker.counts for marker in read(folder, source)}


# --- the lists ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("standard", "count"), [(STANDARDS[0], 251), (STANDARDS[1], 141)])
def test_every_statement_of_the_standard_is_listed_once(standard: Standard, count: int) -> None:
    """The counts are those of appendix B of each standard."""
    ids = [statement.id for statement in standard.statements()]
    assert len(ids) == len(set(ids)) == count


@each_standard
def test_statements_stand_in_the_order_of_their_numbers(standard: Standard) -> None:
    numbers = [number(statement) for statement in standard.statements()]
    assert numbers == sorted(numbers)


@each_standard
def test_numbers_leave_no_gap(standard: Standard) -> None:
    seen: dict[str, list[int]] = {}
    for statement in standard.statements():
        section, last = number(statement)
        seen.setdefault(".".join(map(str, section)), []).append(last)
    gaps = {
        section for section, numbers in seen.items() if numbers != list(range(1, len(numbers) + 1))
    }
    assert gaps == ({"2.2.1"} if standard.name == "MQTT 5.0" else set())  # there is no 2.2.1-1


@each_standard
def test_each_statement_is_filled_in(standard: Standard) -> None:
    for statement in standard.statements():
        section = statement.id.removeprefix("MQTT-").partition("-")[0]
        while section.endswith(".0"):  # 3.1.0-1 stands in section 3.1
            section = section.removesuffix(".0")
        assert statement.section == section, statement.id
        assert statement.text.endswith("."), statement.id
        assert statement.applies in {"server", "client", "both"}, statement.id
        assert not statement.why_not or statement.why_not.endswith("."), statement.id
        assert statement.why_not or statement.applies != "client", statement.id


def test_every_marker_in_the_tests_names_a_statement() -> None:
    _, unknown = measure(read_markers(TESTS))
    assert not [f"{marker.where}: {marker.cited}" for marker in unknown]


# --- the reader -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "@pytest.mark.spec('A', 'B')\ndef test_one(): pass",
        "@mark.spec('A')\n@mark.spec('B')\nasync def test_one(): pass",
        "@mark.spec('A')\nclass TestOne:\n @mark.spec('B')\n def test_one(self): pass",
        "class TestOne:\n pytestmark = pytest.mark.spec('A', 'B')\n def test_one(self): pass",
        "class TestOne:\n class TestTwo:\n  @mark.spec('A', 'B')\n  def test_one(self): pass",
        "@pytest.mark.spec('A', 'B')\nclass TestOne(Machine.TestCase): pass",
        "pytestmark = pytest.mark.spec('A', 'B')\ndef test_one(): pass",
        "pytestmark = [mark.slow, mark.spec('A'), mark.spec('B')]\ndef test_one(): pass",
        "@mark.parametrize('n', [pytest.param(1, marks=mark.spec('A')),\n"
        " pytest.param(2, marks=[mark.spec('B')])])\ndef test_one(n): pass",
    ],
)
def test_a_marker_is_seen_wherever_pytest_takes_it(tmp_path: Path, source: str) -> None:
    assert cited(tmp_path, source) == {"A": True, "B": True}


@pytest.mark.parametrize(
    "source",
    [
        "@pytest.mark.spec('A')\n@pytest.mark.skip\ndef test_one(): pass",
        "@pytest.mark.spec('A')\n@pytest.mark.skip(reason='later')\ndef test_one(): pass",
        "@pytest.mark.spec('A')\n@pytest.mark.skipif(True, reason='')\ndef test_one(): pass",
        "@mark.xfail\n@mark.spec('A')\ndef test_one(): pass",
        "@mark.xfail\nclass TestOne:\n @mark.spec('A')\n def test_one(self): pass",
        "@mark.spec('A')\nclass TestOne:\n @mark.skip\n def test_one(self): pass",
        "@mark.spec('A')\n@mark.skip\nclass TestOne(Base): pass",
        "pytestmark = [mark.skip]\n@mark.spec('A')\ndef test_one(): pass",
        "@mark.spec('A')\ndef test_one():\n pytest.skip('not yet')",
        "pytest.skip('not yet', allow_module_level=True)\n@mark.spec('A')\ndef test_one(): pass",
        "@mark.parametrize('n', [param(1, marks=[mark.spec('A'), mark.xfail])])\n"
        "def test_one(n): pass",
        "@mark.spec('A')\ndef helper(): pass",
        "@mark.spec('A')\nclass TestOne:\n def helper(self): pass",
        "pytestmark = mark.spec('A')",
    ],
)
def test_a_test_that_cannot_fail_does_not_count(tmp_path: Path, source: str) -> None:
    assert cited(tmp_path, source) == {"A": False}


def test_a_class_counts_while_one_of_its_tests_does(tmp_path: Path) -> None:
    source = (
        "@mark.spec('A')\nclass TestOne:\n"
        " @mark.skip\n def test_one(self): pass\n def test_two(self): pass"
    )
    assert cited(tmp_path, source) == {"A": True}


def test_other_marks_and_texts_are_no_markers(tmp_path: Path) -> None:
    source = "@mark.slow\n@spec('A')\ndef test_one():\n '''@pytest.mark.spec('B')'''"
    assert cited(tmp_path, source) == {}


def test_a_marker_says_where_it_stands(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    (tests / "session").mkdir(parents=True)
    (tests / "session" / "test_wills.py").write_text("\n@mark.spec('A')\ndef test_one(): pass")
    assert read_markers(tests) == [Marker("A", "tests/session/test_wills.py:2", True)]


# --- the verdict ----------------------------------------------------------------------------------


def test_a_standard_is_covered_by_its_own_prefix() -> None:
    markers = [Marker("MQTT-3.12.4-1", "here", True), Marker("v3:MQTT-4.8.0-1", "here", True)]
    (mqtt5, mqtt311), unknown = measure(markers)
    assert mqtt5.covered == {"MQTT-3.12.4-1"}
    assert mqtt311.covered == {"MQTT-4.8.0-1"}
    assert not unknown


def test_a_statement_with_a_reason_is_not_due_and_may_be_covered() -> None:
    (mqtt5, _), unknown = measure([Marker("MQTT-6.0.0-1", "here", True)])
    assert "MQTT-6.0.0-1" in mqtt5.covered
    assert mqtt5.percent == 0
    assert not unknown


@pytest.mark.parametrize("cited", ["MQTT-9.9.9-9", "v3:MQTT-3.15.1-1", "v5:MQTT-3.1.0-1", ""])
def test_an_unknown_statement_is_found(cited: str) -> None:
    marker = Marker(cited, "here", True)
    assert measure([marker])[1] == [marker]


def test_what_is_no_literal_string_is_unknown(tmp_path: Path) -> None:
    markers = read(tmp_path, "@mark.spec(PING, f'MQTT-{n}', *MORE, 5)\ndef test_one(): pass")
    assert [marker.cited for marker in measure(markers)[1]] == ["PING", "f'MQTT-{n}'", "*MORE", "5"]


@pytest.mark.parametrize(
    ("one_more", "cited", "status"),
    [(False, "", 0), (True, "", 1), (False, "MQTT-9.9.9-9", 1)],
    ids=["enough", "too few", "unknown"],
)
def test_the_exit_status(
    one_more: bool,
    cited: str,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of MQTT 5.0 as many statements have no test as 95 % allow, or one more."""
    mqtt5, mqtt311 = ([one.id for one in each.due] for each in measure([])[0])
    without = len(mqtt5) // 20 + one_more
    names = mqtt5[without:] + [f"v3:{name}" for name in mqtt311] + ([cited] if cited else [])
    markers = [Marker(name, "tests/test_here.py:1", True) for name in names]
    monkeypatch.setattr(coverage, "read_markers", lambda _folder: markers)
    monkeypatch.setattr(sys, "argv", ["coverage.py"])
    assert coverage.main() == status
    printed = capsys.readouterr().out
    assert all(f"{name} " in printed for name in mqtt5[:without])
    assert not cited or f"tests/test_here.py:1: there is no statement '{cited}'" in printed


def test_list_untested_prints_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(coverage, "read_markers", lambda _folder: [])
    monkeypatch.setattr(sys, "argv", ["coverage.py", "--list-untested", "--minimum", "0"])
    assert coverage.main() == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == sum(len(each.due) for each in measure([])[0])
    assert printed[0].startswith("MQTT-1.5.4-1  Strings are")
