"""The tab that finds the log-likelihood of images."""
