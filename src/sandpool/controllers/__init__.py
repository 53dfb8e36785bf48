"""What keeps sandboxes, templates, pools and claims as they should be: a package per kind, a file per step."""
