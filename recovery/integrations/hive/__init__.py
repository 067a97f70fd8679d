"""Aden Hive: its tools called once, its conversations healed and kept, its graphs resumed.

Nothing of Hive is imported: what is wrapped is known by what it can do, so that this serves its
releases with graph executors (0.8.0) as those with AgentLoop and Orchestrator (August 2026). See
docs/hive.md.
"""

from recovery import current_call
from recovery.integrations.hive.conversation import DamagedConversationError, RecordedConversation
from recovery.integrations.hive.graph import recorded_llm, recorded_nodes, recorded_result
from recovery.integrations.hive.home import default_store
from recovery.integrations.hive.loops import RecordedLoops
from recovery.integrations.hive.session import RecordedLoop
from recovery.integrations.hive.tools import RecordedTools

__all__ = [
    "DamagedConversationError",
    "RecordedConversation",
    "RecordedLoop",
    "RecordedLoops",
    "RecordedTools",
    "current_call",
    "default_store",
    "recorded_llm",
    "recorded_nodes",
    "recorded_result",
]
