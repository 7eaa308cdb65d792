"""Reports for people: a study's findings as one page in HTML or Markdown."""
