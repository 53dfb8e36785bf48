"""Authentication, impersonation, RBAC authorization and the review APIs."""
