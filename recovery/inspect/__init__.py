"""Looking at runs without their code: status, events, comparison."""
