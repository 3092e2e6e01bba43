"""Profiles: one kind of work each, as YAML, versioned by content."""

from gateway.profiles.loader import Profile, ProfileInvalid, Profiles, load_profiles

__all__ = ["Profile", "ProfileInvalid", "Profiles", "load_profiles"]
