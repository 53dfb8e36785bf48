"""One API request: its attributes, options and body, and the handler that maps it to a verb and a response."""
