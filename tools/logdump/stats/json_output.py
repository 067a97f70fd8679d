"""Encodes the output of ``logdump stats --json``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from logdump.stats.log_statistics import PARTS, LogStatistics, StepTotals, ToolTotals, UsageTotals
from recovery.replay.error_counts import RunError

if TYPE_CHECKING:
    from logdump.stats.frames import Frames


def step_object(step: StepTotals) -> dict[str, Any]:
    """A step."""
    return {
        "type": "step",
        "step": step.step,
        "time_ns": step.since_ns,
        "at_work_s": step.at_work_ns / 1e9,
        "calls": step.calls,
        "records": step.records,
        "size": step.size,
        "checkpoint_size": step.checkpoint,
        **_used(step.used),
    }


def totals_object(statistics: LogStatistics, frames: Frames) -> dict[str, Any]:
    """The totals."""
    log = {
        "segments": frames.segments,
        "on_disk": frames.on_disk,
        "frames": frames.frames,
        "frames_size": frames.size,
        "records": statistics.records + frames.hidden,
        "size": statistics.size,
        "first_lsn": frames.first_lsn,
        "last_lsn": frames.last_lsn,
        "encrypted": frames.hidden,
        "key_id": frames.key_id,
        "unreadable": statistics.unreadable,
        "torn": frames.torn,
        "bits": frames.bits,
    }
    found: dict[str, Any] = {
        "type": "stats",
        "log": log,
        "damage": [finding.as_json() for finding in frames.shown],
        "kinds": [{"kind": name, **asdict(kind)} for name, kind in statistics.kinds.items()],
    }
    return found | (_run(statistics) if statistics.is_run else {})


def _run(statistics: LogStatistics) -> dict[str, Any]:
    spent, recoveries, growth = statistics.time, statistics.recoveries, statistics.growth
    first, last = growth.tenths()
    return {
        "run": {
            "steps": statistics.steps,
            "calls": statistics.calls,
            "open": [open_attempt.lsn for open_attempt in statistics.open],
            **_used(statistics.used),
        },
        "time": {
            "wall_s": (spent.last_ns - spent.first_ns) / 1e9,
            "at_work_s": spent.at_work_ns / 1e9,
            "in_tools_s": spent.in_tools_ns / 1e9,
            "parallel_s": spent.parallel_ns / 1e9,
            "waiting_s": spent.waiting_ns / 1e9,
        },
        "recoveries": {
            "count": recoveries.count,
            "replayed": recoveries.replayed,
            "repeated": recoveries.repeated,
            "unknown": recoveries.unknown,
            "served": _used(recoveries.served),
        },
        "errors": _errors(statistics.errors.last),
        "checkpoints": asdict(statistics.checkpoints),
        "growth": {
            "stretch_steps": growth.width,
            "per_step": growth.per_step(),
            "first_tenth": dict(zip(PARTS, first, strict=True)),
            "last_tenth": dict(zip(PARTS, last, strict=True)),
            "size": {part: statistics.parts[part] for part in PARTS},
        },
        "tools": [{"name": name, **_tool(tool)} for name, tool in statistics.tools.items()],
        "slowest": [
            {
                "call": -lsn,
                "tool": tool,
                "call_id": call_id,
                "step": step,
                "attempt": attempt,
                "seconds": ns / 1e9,
            }
            for ns, lsn, tool, call_id, step, attempt in statistics.slow
        ],
    }


def _tool(tool: ToolTotals) -> dict[str, Any]:
    times = tool.durations
    return {
        "calls": tool.calls,
        "attempts": tool.attempts,
        "failed": tool.failed,
        "open": tool.open,
        "total_s": times.total_ns / 1e9,
        "median_s": times.median_ns() / 1e9,
        "median_is_exact": times.exact,
        "max_s": times.longest_ns / 1e9,
        "arguments_size": tool.arguments_size,
        "results_size": tool.results_size,
        **_used(tool.used),
    }


def _used(used: UsageTotals) -> dict[str, Any]:
    return asdict(used)


def _errors(last: RunError | None) -> dict[str, Any] | None:
    """The errors of the agent's own code, without their messages, which may hold any value."""
    if last is None:
        return None
    return {
        "total": last.total,
        "in_a_row": last.in_a_row,
        "type": last.type,
        "step": last.step,
        "place": last.place,
        "is_past": last.is_past,
    }
