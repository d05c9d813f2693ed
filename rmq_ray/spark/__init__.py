"""Topics as Spark DataFrames and back."""
