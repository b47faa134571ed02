"""From a target and a limit to the largest batch: captures, forms, runs, remedies."""
