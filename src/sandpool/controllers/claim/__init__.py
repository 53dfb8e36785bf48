"""The claim controller: gives every SandboxClaim one sandbox, from a pool or made for it, and takes it away again."""
