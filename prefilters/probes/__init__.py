"""Probes measure a file; they alone touch decoders, and they run in children that may be killed."""
