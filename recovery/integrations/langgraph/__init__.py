"""LangGraph: its threads recorded as logs, checkpointed in every step and resumed.

Needs the extra: ``pip install 'agent-eventlog[langgraph]'``. See docs/langgraph.md.
"""

from recovery.integrations.versions import check_version

# In earlier versions a graph with a delta channel hangs if the saver takes some milliseconds.
check_version("langgraph", "1.2.15", "2")

from recovery.integrations.langgraph.resuming import abegin_or_resume, begin_or_resume  # noqa: E402
from recovery.integrations.langgraph.saver import EventLogSaver  # noqa: E402
from recovery.integrations.langgraph.thread import ThreadMovedError  # noqa: E402

__all__ = ["EventLogSaver", "ThreadMovedError", "abegin_or_resume", "begin_or_resume"]
