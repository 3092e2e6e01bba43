"""Facts in, verdict out: ordered rules in YAML, conditions in CEL."""

from prefilters.rules.engine import evaluate
from prefilters.rules.loader import load_rules
from prefilters.rules.model import RuleSet
from prefilters.rules.source import RuleSource

__all__ = ["RuleSet", "RuleSource", "evaluate", "load_rules"]
