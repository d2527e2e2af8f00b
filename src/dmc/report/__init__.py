"""What a person looks at: progress, tables, pictures."""
