"""What runs inside the sandbox: the fork server and its small C half. Standard library only; copied into the root."""
