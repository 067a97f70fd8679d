"""Results as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from ._bench import Chart
from ._result import Result

OURS = "agent-eventlog"  # subjects of ours are called that, and perhaps more
_COLOURS = ("#8c96a0", "#c98b54", "#7a9e6b", "#9b7bb0", "#b0686a", "#5f9ea6", "#a6a15f", "#777777")
_OUR_COLOURS = ("#1f6feb", "#6aa5f7", "#0b3d91")


def draw(path: Path, title: str, unit: str, chart: Chart, results: Sequence[Result]) -> None:
    """Write the picture, as SVG: the same bytes for the same figures."""
    mpl.rcParams.update({"svg.hashsalt": "agent-eventlog", "font.size": 9})
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    subjects = list(dict.fromkeys(one.subject for one in results))
    colours = _colours(subjects)
    (_lines if chart.kind == "lines" else _bars)(axes, results, colours)
    value_axis = axes.xaxis if chart.kind == "bars" else axes.yaxis
    if chart.log:
        (axes.set_xscale if chart.kind == "bars" else axes.set_yscale)("log")
    value_axis.set_label_text(unit)
    if chart.kind == "lines":
        axes.set_xscale("log")
        axes.set_xlabel(chart.across)
        if not chart.log:
            axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.grid(axis="x" if chart.kind == "bars" else "y", alpha=0.3)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, format="svg", metadata={"Date": None})


def _colours(subjects: Sequence[str]) -> dict[str, str]:
    ours = [name for name in subjects if name.startswith(OURS)]
    theirs = [name for name in subjects if name not in ours]
    return {
        **{name: _OUR_COLOURS[i % len(_OUR_COLOURS)] for i, name in enumerate(ours)},
        **{name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(theirs)},
    }


def _bars(axes: Any, results: Sequence[Result], colours: dict[str, str]) -> None:
    cases = list(dict.fromkeys(one.case for one in results))
    height = 0.8 / len(colours)
    for i, (subject, colour) in enumerate(colours.items()):
        mine = [one for one in results if one.subject == subject]
        places = [cases.index(one.case) - 0.4 + (i + 0.5) * height for one in mine]
        axes.barh(places, [one.median for one in mine], height, color=colour, label=subject)
    axes.set_yticks(range(len(cases)), cases)
    axes.invert_yaxis()


def _lines(axes: Any, results: Sequence[Result], colours: dict[str, str]) -> None:
    for subject, colour in colours.items():
        mine = [one for one in results if one.subject == subject]
        across = [float(one.case.split()[0].replace(",", "")) for one in mine]
        axes.plot(across, [one.median for one in mine], "o-", color=colour, label=subject)
