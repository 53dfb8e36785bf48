"""The strategy of each kind: defaults, validation, status, deletion, selectable fields."""
