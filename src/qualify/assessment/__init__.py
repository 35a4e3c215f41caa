"""Floor 2: pure rules that turn evidence into a verdict. No I/O, and no clock of their own."""
