"""The Game of 24 of the follow-up (Mittal, Kang & Lee, 2025): a known world whose value is learned."""
