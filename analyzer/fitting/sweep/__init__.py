"""``analyze sweep``: one estimate for each model, batch, card and remedy."""
