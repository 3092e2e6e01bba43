"""Bytes in, facts and a verdict out. Importing this loads no decoder: those live in the children of a `DecoderPool`.

with DecoderPool(limits=DecodeLimits()) as pool:
    print(screen(Path("photo.jpg"), rules=load_rules(), pool=pool, limits=DecodeLimits()).verdict)
"""

from prefilters.errors import DecodeStatus, ProbeError, RuleSetInvalid
from prefilters.facts import FACTS, Facts, FactValue, Stage
from prefilters.limits import DecodeLimits
from prefilters.media import Media, MediaKind, sniff, sniff_file, type_mismatch
from prefilters.pool import Bulkhead, DecoderPool, PoolClosed
from prefilters.rules import RuleSet, RuleSource, evaluate, load_rules
from prefilters.screen import Screening, screen
from prefilters.verdict import Check, CheckOutcome, Effect, Next, Verdict, VerdictKind

__all__ = [
    "FACTS",
    "Bulkhead",
    "Check",
    "CheckOutcome",
    "DecodeLimits",
    "DecodeStatus",
    "DecoderPool",
    "Effect",
    "FactValue",
    "Facts",
    "Media",
    "MediaKind",
    "Next",
    "PoolClosed",
    "ProbeError",
    "RuleSet",
    "RuleSetInvalid",
    "RuleSource",
    "Screening",
    "Stage",
    "Verdict",
    "VerdictKind",
    "evaluate",
    "load_rules",
    "screen",
    "sniff",
    "sniff_file",
    "type_mismatch",
]
