"""Runs MCP gateways side by side and writes what was measured. See ../README.md."""
