"""Chat models of LangChain that need no network."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult


class OfflineModel(BaseChatModel):
    """Answers each request by ``says``, and may be given any tools."""

    @abstractmethod
    def says(self, messages: list[Any]) -> AIMessage:
        """What it answers to these messages."""

    @property
    def _llm_type(self) -> str:
        return "offline"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: Any, *args: Any, **options: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.says(messages))])
