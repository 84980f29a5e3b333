"""Charts: what is drawn of a series."""

import re

from matplotlib.figure import Figure

from fastmax_lab.report.page import drawing
from fastmax_lab.report.page.parts import Chart, Series


def test_points_without_a_line_are_points() -> None:
    """However many there are; a line through so many has no markers."""
    many = tuple(float(i) for i in range(40))
    for line, style, marked in ((False, "None", True), (True, "-", False)):
        axes = Figure().add_subplot()
        series = Series("softmax", many, many, line=line)
        drawing._series(axes, Chart("a", "a", "x", "y", (series,)), series, 0)
        drawn = axes.lines[0]
        assert drawn.get_linestyle() == style
        assert (drawn.get_marker() != "") is marked


def test_circles_have_their_names_beside_them() -> None:
    """A legend of large circles covers itself; plain numbers stand on a short logarithmic axis."""
    series = tuple(Series(name, (x,), (1.0,), area=(900.0,)) for name, x in (("softmax", 3.0), ("fastmax2", 17.0)))
    svg = drawing.draw(Chart("a", "a", "x", "y", series, x_log=True))[0].decode()
    assert [svg.count(f">{name}<") for name in ("softmax", "fastmax2")] == [1, 1]
    assert "legend" not in svg
    assert ">10<" in svg


def test_ids_in_the_page_are_those_of_the_chart() -> None:
    """Two charts stand in one page, and both have a figure_1; what refers to an id goes with it."""
    svg = drawing.draw(Chart("a", "a", "x", "y", (Series("softmax", (1.0, 2.0), (1.0, 2.0)),)))[0]
    shown = [drawing.for_page(svg, name) for name in ("first", "second, with spaces")]
    ids = [set(re.findall(r'\sid="([^"]*)"', one)) for one in shown]
    assert "first-figure_1" in ids[0]
    assert "second-with-spaces-figure_1" in ids[1]
    assert not ids[0] & ids[1]
    for one, own in zip(shown, ids, strict=True):
        used = set(re.findall(r'(?:url\(|href=")#([^)"]*)', one))
        assert used
        assert used <= own
