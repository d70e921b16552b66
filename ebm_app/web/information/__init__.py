"""The tab that estimates mutual information."""
