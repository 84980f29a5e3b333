"""Charts: what is drawn of a series."""

from matplotlib.figure import Figure

from fastmax.report.page import drawing
from fastmax.report.page.parts import Chart, Series


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
