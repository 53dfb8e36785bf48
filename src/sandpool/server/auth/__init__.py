"""Who is asking, and may they: authentication, impersonation, role-based authorisation and the reviews about both."""
