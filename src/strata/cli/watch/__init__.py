"""Commands that show what jobs do: status, events, goodput, top, and the dashboard."""
