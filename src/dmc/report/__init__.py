"""All output for people: tables, figures, drawings, and notes on how they were made."""
