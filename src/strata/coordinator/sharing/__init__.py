"""How tenants share one coordinator: fair scheduling of their requests, and how much of the coordinator each uses."""
