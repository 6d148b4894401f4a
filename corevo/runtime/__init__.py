"""The agent kernel: what runs an agent and carries away what it says. Knows nothing of clients."""
