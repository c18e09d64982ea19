"""Why drafting works where it does: replay of recorded traces, and counterfactual pictures."""
