"""questions: one per file. Each is a pure function from DataFrames to a DataFrame."""
