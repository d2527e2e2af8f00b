"""What a person looks at: tables, pictures, and how they were made."""
