"""Values and rules that every part shares; pure, standard library only."""
