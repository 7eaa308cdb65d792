"""A report as a document, and documents as pages, with their pictures."""
