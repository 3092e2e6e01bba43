"""What happens instead of the full agent: which route an item takes, and how copy is drafted from text alone."""
