"""How long an analysis takes, by rows of samples, and in how much memory."""
