"""The web page: a folder for each tab, and what the tabs share."""
