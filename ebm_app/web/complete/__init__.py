"""The tab that completes images."""
