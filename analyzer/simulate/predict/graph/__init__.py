"""The graph as the executor holds it: nodes, edges and their order."""
