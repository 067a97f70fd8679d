"""Pydantic AI with DBOS, on SQLite or PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dbos import DBOS
from pydantic_ai.durable_exec.dbos import DBOSDurability

from .pydantic_agents import Without


class Sqlite(Without):
    """In its default settings; the tool is a step, as the documentation shows."""

    def database(self) -> str:
        return f"sqlite:///{self._directory / 'db'}"

    async def begin(self) -> None:
        settings = {"name": "bench", "system_database_url": self.database()}
        DBOS(config={**settings, "log_level": "ERROR", "run_admin_server": False})
        self._agent = self.agent(DBOSDurability())
        self._agent.tool_plain(self.tool())

        @DBOS.workflow()
        async def run() -> None:
            await self._agent.run("go")

        self._workflow = run
        DBOS.launch()

    def tool(self) -> Any:
        return DBOS.step()(super().tool())

    async def run(self, name: str) -> None:
        await self._workflow()

    def close(self) -> None:
        DBOS.destroy()


class Postgres(Sqlite):
    """PostgreSQL, in its default settings, on a socket."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        import pgserver  # noqa: PLC0415 - not wherever DBOS is

        self._server = pgserver.get_server(directory / "postgres")
        super().__init__(directory, case)

    def database(self) -> str:
        return str(self._server.get_uri())

    def close(self) -> None:
        super().close()
        self._server.cleanup()
