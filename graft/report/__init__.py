"""Reports for people: what a study found, as one page in HTML or Markdown. Renders what `search` has computed."""
