import json
import re

import plotly.graph_objects as go
import pytest

from spark_analysis.analysis import QUESTIONS, Analysis
from spark_analysis.report.markup import Html, element, table
from spark_analysis.report.page import page
from spark_analysis.report.sections import REGION_TITLE

FIGURE = re.compile(r'<script type="application/json">(.*?)</script>', re.DOTALL)


@pytest.mark.spark
def test_every_question_is_a_title_with_a_chart_a_sentence_and_a_table(analysis: Analysis) -> None:
    text = page(analysis)
    for question in QUESTIONS:
        section = text.split(f'id="q-{question.name}"')[1].split("</section>")[0]
        assert f"<h2>{question.title}</h2>" in section
        assert section.count('class="chart"') >= section.count("<article>") > 0
        assert section.count('class="conclusion"') == section.count("<article>")
        assert section.count("<table>") == section.count("<article>")
    assert REGION_TITLE in text


@pytest.mark.spark
def test_every_figure_is_one_that_plotly_knows(analysis: Analysis) -> None:
    figures = [json.loads(text) for text in FIGURE.findall(page(analysis))]
    assert len(figures) > 20
    for figure in figures:
        go.Figure(figure)  # refuses unknown properties and values


@pytest.mark.spark
def test_the_page_forbids_itself_every_request(analysis: Analysis) -> None:
    text = page(analysis)
    head = text.split("</head>")[0]
    assert "default-src 'none'" in head
    assert not re.search(r'<(script|img|iframe|link)[^>]* (src|href)="(?!data:)', text)


def test_what_comes_from_data_is_text() -> None:
    nasty = '<script>alert("x")</script>'
    cell = str(table(["name"], [[nasty]]))
    assert nasty not in cell
    assert "&lt;script&gt;" in cell
    assert str(element("p", Html("<b>b</b>"), title='"')) == '<p title="&quot;"><b>b</b></p>'
