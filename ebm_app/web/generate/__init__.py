"""The tab that draws images."""
