"""Why things are as they are: timelines from audit logs, and causes from what the objects say."""
