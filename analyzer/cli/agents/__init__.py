"""Use by coding agents: the skill, and the MCP server."""
