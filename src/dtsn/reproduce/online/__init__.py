"""Online learning: D-TSN against a plain DQN and TreeQN at equal environment steps."""
