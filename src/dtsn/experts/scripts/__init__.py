"""Scripted experts of Procgen's games: behaviour policies where learning is too slow for a small machine.

They see no more than a policy does: frames. A game's script is a class of one episode that is going on; what
all scripts share is in `dtsn.experts.scripted`.
"""
