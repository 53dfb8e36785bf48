"""What is special about each kind: defaults, validation, status, deletion, selectable fields."""
