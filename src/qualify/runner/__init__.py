"""Floor 6: plan → reserve → run → record → assess."""
