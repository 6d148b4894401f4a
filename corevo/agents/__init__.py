"""Agents that come with Corevo."""
