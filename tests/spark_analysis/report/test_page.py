import re

import pytest
from pyspark.sql import SparkSession

from spark_analysis.analysis import QUESTIONS, Analysis, analyse
from spark_analysis.report.markup import Html, element, table
from spark_analysis.report.page import page
from spark_analysis.report.sections import REGION_TITLE
from spark_analysis.runs.examination import examine, find_runs
from tests.spark_analysis.recorded import record


@pytest.mark.spark
def test_every_question_is_a_title_with_a_chart_a_sentence_and_a_table(analysis: Analysis) -> None:
    text = page(analysis)
    for question in QUESTIONS:
        section = text.split(f'id="q-{question.name}"')[1].split("</section>")[0]
        assert f"<h2>{question.title}</h2>" in section
        assert section.count("<figure>") >= section.count("<article>") > 0
        assert section.count('class="conclusion"') == section.count("<article>")
        assert section.count("<table>") == section.count("<article>")
    assert REGION_TITLE in text


@pytest.mark.spark
def test_the_page_forbids_itself_every_request(analysis: Analysis) -> None:
    text = page(analysis)
    head = text.split("</head>")[0]
    assert "default-src 'none'" in head
    assert not re.search(r'<(script|img|iframe|link)[^>]* (src|href)="(?!data:)', text)
    assert "<script" not in text
    assert len(text) < 1_000_000


def test_what_comes_from_data_is_text() -> None:
    nasty = '<script>alert("x")</script>'
    cell = str(table(["name"], [[nasty]]))
    assert nasty not in cell
    assert "&lt;script&gt;" in cell
    assert str(element("p", Html("<b>b</b>"), title='"')) == '<p title="&quot;"><b>b</b></p>'


@pytest.fixture(scope="module")
def text(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of three live runs, of a crowd, of a run with publishers, and of one without a row
    of goodput."""
    folder = tmp_path_factory.mktemp("runs")
    for name, window, per_step in (("a", "50", 6_533), ("b", "60", 6_532), ("calm", "70", 1)):
        goodput = [
            {"population": "all", "t_s": float(t_s), "acknowledged_count": per_step}
            for t_s in range(1, 61)
        ]
        described = {"source": "broker", "scenario": "live", "policy": "flowguard"}
        parameters = [("flow.window_max", window)]
        record(
            folder / name,
            name,
            run={**described, "parameters": parameters},
            end={"ended_by": "stopped"},
            goodput=goodput,
        )
    for name, due in (("crowd", 0), ("talk", 5)):
        goodput = [
            {"population": "cars", "t_s": float(t_s), "first_connected_count": t_s}
            | {"due_count": due, "acknowledged_count": due, "in_time_count": due}
            for t_s in range(1, 11)
        ]
        described = {"scenario": name, "policy": "flowguard"}
        connects = {
            "population": "cars",
            "kind": "connect",
            "t_s": 10.0,
            "bound_s": 0.2,
            "count": 9,
        }
        record(
            folder / name,
            name,
            run=described,
            goodput=goodput,
            latencies=[connects] if name == "crowd" else [],
            end={"ended_s": 10.0},
        )
    unknown = [{"population": "all", "t_s": float(t_s)} for t_s in range(1, 11)]
    described = {"source": "broker", "scenario": "unknown", "policy": "flowguard"}
    record(folder / "unknown", "unknown", run=described, goodput=unknown, end={"ended_s": 10.0})
    found = page(analyse(spark, *examine(find_runs([folder]))))
    return found.replace("\N{NO-BREAK SPACE}", " ")


def articles_of(text: str) -> list[str]:
    """Return the articles on goodput, in the order of their scenarios."""
    return text.split('id="q-goodput"')[1].split("</section>")[0].split("<article>")[1:]


@pytest.mark.spark
def test_live_runs_of_different_load_are_no_rivals_and_an_orderly_end_is_no_trouble(
    text: str,
) -> None:
    _, live, _ = articles_of(text)
    (sentence,) = re.findall(r'<p class="conclusion">(.*?)</p>', live)
    assert sentence.startswith("Equal within noise: between 6,533 /s (")
    assert "Not compared, because each had a load of its own: 1 /s (" in sentence
    assert "best of" not in text
    assert "is last" not in text
    assert "Stopped before their end" not in text
    assert "its broker&#x27;s end 1" in text


@pytest.mark.spark
def test_where_nobody_publishes_first_connections_are_called_that(text: str) -> None:
    crowd, _, talk = articles_of(text)  # The run without a row has no figure.
    assert "crowd: clients connected for the first time per second" in crowd
    assert '<p class="axis">clients connected for the first time per second</p>' in crowd
    assert "PUBLISH" not in crowd
    assert "talk: PUBLISHes in time per second" in talk
    assert "first time" not in talk


@pytest.mark.spark
def test_a_crowd_that_sends_nothing_still_waits_for_its_connacks(text: str) -> None:
    waits = text.split('id="q-latency"')[1].split("</section>")[0]
    (sentence,) = re.findall(r'<p class="conclusion">(.*?)</p>', waits)
    assert "200 ms CONNACK, 99 %" in sentence
    assert "<figure>" not in waits  # One run: a single number needs no chart.
