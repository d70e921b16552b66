"""The tab that shows a model's card and checks it."""
